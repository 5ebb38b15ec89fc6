// The inputs of a layer with experts, from the residual stream after attention:
//
//   v = h + post ⊙ rms(o);   x[i] = norm[i] ⊙ rms(v)   for the dense block, the experts and the router (i = 0, 1, 2)
//
//   h, o, h_out [R, K] f32; norms [4, K] f32: post, then the three; x [3, R, K] f32
//   PARTS: o in partial sums (pending.wgsl)
//
// One workgroup per row. A thread keeps {{QUADS}} vectors of everything, K / 4 / {{THREADS}} rounded up, so memory is
// waited for once. Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  rows: u32,
  eps: f32,
//#if PARTS
  o_parts: u32,
  o_step: u32,  // vectors of four from one part to the next
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> o: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> h_out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> x: array<vec4<f32>>;
//#include reduce
//#include pending

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let quads = params.blocks * 8u;
  let first = group.x * quads;
//#for j in QUADS
  let i{{j}} = me.index + {{j}}u * {{THREADS}}u;
  var o{{j}} = vec4<f32>();
  var v{{j}} = vec4<f32>();
  var post{{j}} = vec4<f32>();
//#for which in 3
  var norm{{which}}_{{j}} = vec4<f32>();
//#endfor
  if (i{{j}} < quads) {
    o{{j}} = pending(first + i{{j}});
    v{{j}} = h[first + i{{j}}];
    post{{j}} = norms[i{{j}}];
//#for which in 3
    norm{{which}}_{{j}} = norms[({{which}}u + 1u) * quads + i{{j}}];
//#endfor
  }
//#endfor
  var sum = 0.0;
//#for j in QUADS
  sum += dot(o{{j}}, o{{j}});
//#endfor
  let o_factor = inverseSqrt(workgroup_sum(sum, me) / f32(quads * 4u) + params.eps);
  sum = 0.0;
//#for j in QUADS
  v{{j}} += post{{j}} * (o_factor * o{{j}});
  if (i{{j}} < quads) { h_out[first + i{{j}}] = v{{j}}; }
  sum += dot(v{{j}}, v{{j}});
//#endfor
  let v_factor = inverseSqrt(workgroup_sum(sum, me) / f32(quads * 4u) + params.eps);
//#for j in QUADS
  if (i{{j}} < quads) {
//#for which in 3
    x[{{which}}u * params.rows * quads + first + i{{j}}] = norm{{which}}_{{j}} * (v_factor * v{{j}});
//#endfor
  }
//#endfor
}
