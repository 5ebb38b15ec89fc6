// y[t] = (factor · mean of 3 × 3 patches − bias) ⊙ scale: the square of patches that becomes soft token t.
//
//   x [patches, K] f32, rows of `across` patches; y [tokens, K] f32, rows of across / 3; adjust [2, K] f32: bias, scale
//
// One thread per four columns. Grid: (K / 4 / 64, tokens).

struct Params {
  quads: u32,  // K / 4
  across: u32,
  factor: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> adjust: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let quads = params.quads;
  if (id.x >= quads) { return; }
  let row = params.across / 3u;
  let corner = (id.y / row * params.across + id.y % row) * 3u;
  var sum = vec4<f32>();
  for (var i = 0u; i < 9u; i++) {
    sum += x[(corner + i / 3u * params.across + i % 3u) * quads + id.x];
  }
  y[id.y * quads + id.x] = (params.factor * (sum / 9.0) - adjust[id.x]) * adjust[quads + id.x];
}
