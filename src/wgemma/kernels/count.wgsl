// counts[t] += 1 for each of the last `last_n` tokens of the sequence. The counts were zero: adjust.wgsl sees to that.
//
// One thread per place of the past. Grid: (last_n / 256).

//#include row
//#include sampler
@group(0) @binding(1) var<storage, read> settings: Settings;
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read> picked: array<u32>;
@group(0) @binding(4) var<storage, read> history: array<u32>;
@group(0) @binding(5) var<storage, read_write> counts: array<atomic<u32>>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let length = rows[picked[0]].position + 1u;
  if (id.x >= min(settings.last_n, length)) { return; }
  atomicAdd(&counts[history[length - 1u - id.x]], 1u);
}
