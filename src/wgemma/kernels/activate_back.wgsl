// The way back through activate.wgsl: y = gelu(gate) · up.
//
//   dgate = dy · up · gelu′(gate),   dup = dy · gelu(gate)
//
// gelu(x) = x σ(2u), u = √(2/π) (x + 0.044715 x³), so gelu′(x) = σ + x σ (1 − σ) · 2u′. With e = exp(−2|u|) all of it is
// made of numbers between 0 and 1; what goes into e and u′ is clamped so that nothing overflows.
//
//   GEGLU  x, dx [R, 2N] f32   gate and up alternate
//   APART  x, dx [R, 2N] f32   N of gate, then N of up
//   SIDE   x, dx [R, N] f32    gate; up is side[r, side_offset + n], and gets no gradient
//   dy [R, N] f32
//
// One thread per element of dy. Grid: (N / 256, R).

struct Params {
  n: u32,
//#if SIDE
  side_stride: u32,
  side_offset: u32,
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> dy: array<f32>;
@group(0) @binding(3) var<storage, read_write> dx: array<f32>;
//#if SIDE
@group(0) @binding(4) var<storage, read> side: array<f32>;
//#endif

// gelu(x) and gelu′(x).
fn both(x: f32) -> vec2<f32> {
  let near = clamp(x, -20.0, 20.0);
  let twice = 1.5957691216 * (x + 0.044715 * near * near * x);
  let e = exp(-min(abs(twice), 80.0));
  let share = select(e, 1.0, x > 0.0) / (1.0 + e);
  let slope = 1.5957691216 * (1.0 + 0.134145 * near * near);
  return vec2<f32>(x * share, share + x * (e / ((1.0 + e) * (1.0 + e))) * slope);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.n) { return; }
  let at = id.y * params.n + id.x;
//#if GEGLU
  let gate = 2u * at;
  let up = gate + 1u;
//#endif
//#if APART
  let gate = at + id.y * params.n;
  let up = gate + params.n;
//#endif
//#if SIDE
  dx[at] = dy[at] * side[id.y * params.side_stride + params.side_offset + id.x] * both(x[at]).y;
//#else
  let gelu = both(x[gate]);
  dx[gate] = dy[at] * x[up] * gelu.y;
  dx[up] = dy[at] * gelu.x;
//#endif
}
