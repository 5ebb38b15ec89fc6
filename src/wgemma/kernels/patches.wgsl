// The squares of an image as rows of numbers, channel by channel, each row by row: what the first linear layer reads.
//
//   y[p, c · side² + r · side + k] = scale · byte c of x[(p / across) · side + r, (p % across) · side + k] / 255 + shift
//
//   x [down · side, across · side] u32   RGBA, a byte each
//   y [patches, 3 · side²] f32
//
// One thread per four columns. Grid: (3 · side² / 4 / 64, patches). Limits: side is a multiple of 4.

struct Params {
  side: u32,
  across: u32,
  scale: f32,
  shift: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let side = params.side;
  let quads = 3u * side * side / 4u;
  if (id.x >= quads) { return; }
  let at = id.x * 4u;
  let channel = at / (side * side);
  let row = id.y / params.across * side + at / side % side;
  let first = row * params.across * side + id.y % params.across * side + at % side;
  let words = vec4<u32>(x[first], x[first + 1u], x[first + 2u], x[first + 3u]);
  let bytes = (words >> vec4<u32>(8u * channel)) & vec4<u32>(255u);
  y[id.y * quads + id.x] = params.scale * (vec4<f32>(bytes) / 255.0) + params.shift;
}
