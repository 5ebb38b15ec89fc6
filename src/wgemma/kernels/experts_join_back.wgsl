// The way back through experts_join.wgsl, where y = norm₁ ⊙ rms(dense) + norm₂ ⊙ rms(Σₛ routed[s]):
//
//   d_dense = f (g − x̂ mean(g ⊙ x̂))     g = norm₁ ⊙ dy, x = dense, f = 1 / √(mean(x²) + eps), x̂ = f x
//   d_sum, the same with norm₂ and x = Σₛ routed[s]
//
//   dense, dy, d_dense, d_sum [R, K] f32; routed [R, slots, K] f32, already weighted; norms [2, K] f32
//
// One workgroup per row. Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  slots: u32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dense: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> routed: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> dy: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> d_dense: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> d_sum: array<vec4<f32>>;
//#include reduce
//#include routed

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let quads = params.blocks * 8u;
  let first = group.x * quads;
  var squares = vec2<f32>();   // of the dense block, of the experts
  var products = vec2<f32>();
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let a = dense[first + i];
    let b = routed4(group.x, i);
    squares += vec2<f32>(dot(a, a), dot(b, b));
    products += vec2<f32>(dot(norms[i] * dy[first + i], a), dot(norms[quads + i] * dy[first + i], b));
  }
  let width = f32(quads * 4u);
  let mean = vec2<f32>(workgroup_sum(squares.x, me), workgroup_sum(squares.y, me)) / width;
  let factor = inverseSqrt(mean + params.eps);
  let product = vec2<f32>(workgroup_sum(products.x, me), workgroup_sum(products.y, me)) / width;
  let share = factor * factor * product;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    d_dense[first + i] = factor.x * (norms[i] * dy[first + i] - share.x * dense[first + i]);
    d_sum[first + i] = factor.y * (norms[quads + i] * dy[first + i] - share.y * routed4(group.x, i));
  }
}
