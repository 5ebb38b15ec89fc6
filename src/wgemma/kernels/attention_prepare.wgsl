// What the backward pass of attention needs of every query, made once:
//
//   q = rotate(norm ⊙ rms(q_raw)), as the forward pass used it;   delta = Σ d_out · out
//
//   q_raw      [R, stride] f32, heads × D
//   out, d_out [R, heads, D] f32     what attention.wgsl gave, and its gradient
//   lse        [R, heads] f32        from attention.wgsl (PACKED)
//   q          [R, heads, D + 4] f32 the query, in pairs (j, j + D/2) as the keys have them; then lse, delta, 0, 0
//
// All of it is 0 in an unused row. One workgroup per (head, row). Grid: (heads, R).

struct Params {
  heads: u32,
  stride: u32,
  eps: f32,
}
//#include row
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<Row>;
@group(0) @binding(2) var<storage, read> q_raw: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> turns: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> out: array<f32>;
@group(0) @binding(6) var<storage, read> d_out: array<f32>;
@group(0) @binding(7) var<storage, read> lse: array<f32>;
@group(0) @binding(8) var<storage, read_write> q: array<vec2<f32>>;
//#include reduce
//#include rotary

const D = {{HEAD}}u;
const HALF = D / 2u;

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let row = rows[group.y];
  let which = group.y * params.heads + group.x;
  let first = group.y * params.stride + group.x * D;
  var squares = 0.0;
  var product = 0.0;
  for (var i = thread; i < D; i += {{THREADS}}u) {
    squares += q_raw[first + i] * q_raw[first + i];
    product += out[which * D + i] * d_out[which * D + i];
  }
  let factor = inverseSqrt(workgroup_sum(squares, me) / f32(D) + params.eps);
  let delta = workgroup_sum(product, me);
  let unused = row.used == 0u;
  let goal = which * (HALF + 2u);
  for (var j = thread; j < HALF; j += {{THREADS}}u) {
    let low = norm[j] * (factor * q_raw[first + j]);
    let high = norm[j + HALF] * (factor * q_raw[first + j + HALF]);
    q[goal + j] = select(rotate(low, high, j, row.position), vec2<f32>(), unused);
  }
  if (thread == 0u) {
    q[goal + HALF] = select(vec2<f32>(lse[which], delta), vec2<f32>(), unused);
    q[goal + HALF + 1u] = vec2<f32>();
  }
}
