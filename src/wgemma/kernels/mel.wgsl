// y[f, m] = ln(Σ_k triangle_m(k) · |spectrum[f, k]| + floor)
//
//   spectrum [F, bins] vec2<f32>: real and imaginary part
//   edges    [bands + 2] f32, rising, in bins: triangle m is 0 at edges[m] and edges[m + 2], 1 at edges[m + 1]
//   y        [F, bands] f32
//
// One thread per band. Grid: (F). Limits: at most 128 bands.

struct Params {
  bins: u32,
  bands: u32,
  floor: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> spectrum: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> edges: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) band: u32) {
  if (band >= params.bands) { return; }
  let low = edges[band];
  let peak = edges[band + 1u];
  let high = edges[band + 2u];
  var sum = 0.0;
  for (var k = u32(ceil(low)); k < params.bins && f32(k) < high; k++) {
    let part = spectrum[group.x * params.bins + k];
    let share = min((f32(k) - low) / (peak - low), (high - f32(k)) / (high - peak));
    sum += share * sqrt(dot(part, part));
  }
  y[group.x * params.bands + band] = log(sum + params.floor);
}
