// The dense block and the experts of a row become one:   y = norm₁ ⊙ rms(dense) + norm₂ ⊙ rms(Σₛ routed[s])
//
//   dense, y [R, K] f32; routed [R, slots, K] f32, already weighted; norms [2, K] f32
//
// One workgroup per row. A thread keeps {{QUADS}} vectors of everything, K / 4 / {{THREADS}} rounded up, so memory is
// waited for once, and again for every four slots. Grid: (R).

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

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let quads = params.blocks * 8u;
  let first = group.x * quads;
//#for j in QUADS
  let i{{j}} = me.index + {{j}}u * {{THREADS}}u;
  let at{{j}} = min(i{{j}}, quads - 1u);  // past the end the last one is read, and counts for nothing
  let dense{{j}} = dense[first + at{{j}}];
  let dense_norm{{j}} = norms[at{{j}}];
  let routed_norm{{j}} = norms[quads + at{{j}}];
  var routed{{j}} = vec4<f32>();
//#endfor
  for (var slot = 0u; slot < params.slots; slot += 4u) {
//#for s in 4
    let start{{s}} = (group.x * params.slots + min(slot + {{s}}u, params.slots - 1u)) * quads;
//#for j in QUADS
    let part{{s}}_{{j}} = routed[start{{s}} + at{{j}}];
//#endfor
//#endfor
//#for s in 4
//#for j in QUADS
    routed{{j}} += select(vec4<f32>(), part{{s}}_{{j}}, slot + {{s}}u < params.slots);
//#endfor
//#endfor
  }
  var dense_sum = 0.0;
  var routed_sum = 0.0;
//#for j in QUADS
  if (i{{j}} < quads) {
    dense_sum += dot(dense{{j}}, dense{{j}});
    routed_sum += dot(routed{{j}}, routed{{j}});
  }
//#endfor
  let width = f32(quads * 4u);
  let dense_factor = inverseSqrt(workgroup_sum(dense_sum, me) / width + params.eps);
  let routed_factor = inverseSqrt(workgroup_sum(routed_sum, me) / width + params.eps);
//#for j in QUADS
  if (i{{j}} < quads) {
    y[first + i{{j}}] = dense_norm{{j}} * (dense_factor * dense{{j}}) + routed_norm{{j}} * (routed_factor * routed{{j}});
  }
//#endfor
}
