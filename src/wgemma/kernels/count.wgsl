// counts[s, t] += 1 for each of the last `last_n` tokens of slot s's sequence. The counts were zero: adjust.wgsl sees to
// that.
//
//   history, settings: sampler.wgsl; rows and the page tables behind them: tables.wgsl
//
// One thread per place of the past. Grid: (last_n / 256, slots).

struct Params {
  vocab: u32,
  table: u32,
  table_step: u32,
}
//#include row
//#include sampler
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> settings: array<Settings>;
@group(0) @binding(2) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> history: array<u32>;
@group(0) @binding(4) var<storage, read_write> counts: array<atomic<u32>>;
//#include tables

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let slot = id.y;
  let row = row_at(slot);
  let length = row.position + 1u;
  if (row.used == 0u || id.x >= min(settings[slot].last_n, length)) { return; }
  let token = history[place_of(length - 1u - id.x, table_of(slot))];
  atomicAdd(&counts[4u * first_quad(slot) + token], 1u);
}
