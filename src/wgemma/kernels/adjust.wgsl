// adjusted[s, t] = penalised(logits[s, t] + bias[s, t]):  for tokens seen c > 0 times
//
//   l ← (l ≤ 0 ? l · repeat : l / repeat) − c · frequency − presence
//
//   logits, bias, adjusted [slots, V] f32; counts [slots, V] u32, left at zero for the next step; settings: sampler.wgsl
//
// One thread per token; slots that adjust nothing are skipped. Grid: (V / 256, slots).

struct Params {
  vocab: u32,
}
//#include row
//#include sampler
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> settings: array<Settings>;
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> counts: array<u32>;
@group(0) @binding(6) var<storage, read_write> adjusted: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let slot = id.y;
  if (id.x >= params.vocab || rows[slot].used == 0u || settings[slot].adjusts == 0u) { return; }
  let at = 4u * first_quad(slot) + id.x;
  var l = logits[at] + bias[at];
  let count = counts[at];
  if (count > 0u) {
    let own = settings[slot];
    l = select(l / own.repeat, l * own.repeat, l <= 0.0) - f32(count) * own.frequency - own.presence;
    counts[at] = 0u;
  }
  adjusted[at] = l;
}
