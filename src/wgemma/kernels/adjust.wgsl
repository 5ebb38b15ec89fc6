// adjusted[t] = penalised(logits[t] + bias[t]):  for tokens seen c > 0 times
//
//   l ← (l ≤ 0 ? l · repeat : l / repeat) − c · frequency − presence
//
//   logits, bias, adjusted [V] f32; counts [V] u32, left at zero for the next step
//
// One thread per token. Grid: (V / 256).

//#include sampler
@group(0) @binding(1) var<storage, read> settings: Settings;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> adjusted: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= arrayLength(&adjusted)) { return; }
  var l = logits[id.x] + bias[id.x];
  let count = counts[id.x];
  if (count > 0u) {
    l = select(l / settings.repeat, l * settings.repeat, l <= 0.0) - f32(count) * settings.frequency - settings.presence;
    counts[id.x] = 0u;
  }
  adjusted[id.x] = l;
}
