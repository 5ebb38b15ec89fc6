// The way back through the three inputs of experts_norm.wgsl, x[i] = norm[i] ⊙ rms(v), added to what v owes already:
//
//   dv += f (g − x̂ mean(g ⊙ x̂))     g = norm₁ ⊙ d_dense + norm₂ ⊙ Σₛ d_experts[s] + norm₃ ⊙ d_router
//                                     f = 1 / √(mean(v²) + eps), x̂ = f v
//
//   v, dv, d_dense, d_router [R, K] f32; d_experts [R, slots, K] f32; norms [4, K] f32, the first of no interest here
//
// One workgroup per row. Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  slots: u32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> d_dense: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> d_experts: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> d_router: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> dv: array<vec4<f32>>;
//#include reduce

fn gradient4(r: u32, i: u32) -> vec4<f32> {
  let quads = params.blocks * 8u;
  var sum = vec4<f32>();
  for (var slot = 0u; slot < params.slots; slot++) { sum += d_experts[(r * params.slots + slot) * quads + i]; }
  return norms[quads + i] * d_dense[r * quads + i] + norms[2u * quads + i] * sum
    + norms[3u * quads + i] * d_router[r * quads + i];
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let quads = params.blocks * 8u;
  let first = group.x * quads;
  var squares = 0.0;
  var products = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    squares += dot(v[first + i], v[first + i]);
    products += dot(gradient4(group.x, i), v[first + i]);
  }
  let width = f32(quads * 4u);
  let factor = inverseSqrt(workgroup_sum(squares, me) / width + params.eps);
  let share = factor * factor * workgroup_sum(products, me) / width;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    dv[first + i] += factor * (gradient4(group.x, i) - share * v[first + i]);
  }
}
