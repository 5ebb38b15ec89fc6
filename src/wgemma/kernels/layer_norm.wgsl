// y[r] = weight ⊙ (x[r] − mean) / √(variance + ε) + bias, over each row of K.
//
//   x, y [R, K] f32; norms [2, K] f32: weight, bias
//
// One workgroup per row. Grid: (R). Limits: K is a multiple of 4.

struct Params {
  quads: u32,  // K / 4
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let quads = params.quads;
  let count = f32(quads * 4u);
  let first = group.x * quads;
  var sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) { sum += dot(x[first + i], vec4<f32>(1.0)); }
  let mean = workgroup_sum(sum, me) / count;
  sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let part = x[first + i] - mean;
    sum += dot(part, part);
  }
  let factor = inverseSqrt(workgroup_sum(sum, me) / count + params.eps);
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    y[first + i] = norms[i] * (factor * (x[first + i] - mean)) + norms[quads + i];
  }
}
