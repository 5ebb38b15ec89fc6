// The products between two matmuls, for many rows at once.
//
//   GEGLU  y[r, n] = gelu(x[r, 2n]) · x[r, 2n + 1]
//   APART  y[r, n] = gelu(x[r, n]) · x[r, N + n]
//   else   y[r, n] = gelu(x[r, n]) · side[r, side_offset + n]
//
// One thread per result. Grid: (N / 256, R).

struct Params {
  n: u32,
//#if SIDE
  side_stride: u32,
  side_offset: u32,
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
//#if SIDE
@group(0) @binding(3) var<storage, read> side: array<f32>;
//#endif
//#include gelu

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.n) { return; }
  let at = id.y * params.n + id.x;
//#if GEGLU
  y[at] = gelu(x[2u * at]) * x[2u * at + 1u];
//#endif
//#if APART
  y[at] = gelu(x[at + id.y * params.n]) * x[at + (id.y + 1u) * params.n];
//#endif
//#if SIDE
  y[at] = gelu(x[at]) * side[id.y * params.side_stride + params.side_offset + id.x];
//#endif
}
