// y[r, n] = Σ_s parts[s, r, n], in this order: what tile.wgsl or tile_bytes.wgsl made of each share of K.
//
//   parts [shares, R, N] f32; y [R, y_stride] f32, written from y_offset on
//
// One thread per result. Grid: (N / 256, R), rounded up.

struct Params {
  n: u32,
  rows: u32,
  shares: u32,
  y_stride: u32,
  y_offset: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> parts: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.n) { return; }
  var sum = 0.0;
  for (var s = 0u; s < params.shares; s++) { sum += parts[(s * params.rows + id.y) * params.n + id.x]; }
  y[id.y * params.y_stride + params.y_offset + id.x] = sum;
}
