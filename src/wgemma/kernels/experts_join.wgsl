// The dense block and the experts of a row become one:   y = norm₁ ⊙ rms(dense) + norm₂ ⊙ rms(Σₛ routed[s])
//
//   dense, y [R, K] f32; routed [R, slots, K] f32, already weighted; norms [2, K] f32
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
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;
//#include reduce
//#include routed

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let quads = params.blocks * 8u;
  let first = group.x * quads;
  var dense_sum = 0.0;
  var routed_sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let part = routed4(group.x, i);
    dense_sum += dot(dense[first + i], dense[first + i]);
    routed_sum += dot(part, part);
  }
  let width = f32(quads * 4u);
  let dense_factor = inverseSqrt(workgroup_sum(dense_sum, me) / width + params.eps);
  let routed_factor = inverseSqrt(workgroup_sum(routed_sum, me) / width + params.eps);
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    y[first + i] = norms[i] * (dense_factor * dense[first + i])
      + norms[quads + i] * (routed_factor * routed4(group.x, i));
  }
}
