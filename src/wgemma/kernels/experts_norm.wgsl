// The inputs of a layer with experts, from the residual stream after attention:
//
//   v = h + post ⊙ rms(o);   x[i] = norm[i] ⊙ rms(v)   for the dense block, the experts and the router (i = 0, 1, 2)
//
//   h, o, h_out [R, K] f32; norms [4, K] f32: post, then the three; x [3, R, K] f32
//
// One workgroup per row. Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  rows: u32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> o: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> h_out: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> x: array<vec4<f32>>;
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let quads = params.blocks * 8u;
  let first = group.x * quads;
  var sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) { sum += dot(o[first + i], o[first + i]); }
  let o_factor = inverseSqrt(workgroup_sum(sum, me) / f32(quads * 4u) + params.eps);
  sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let v = h[first + i] + norms[i] * (o_factor * o[first + i]);
    h_out[first + i] = v;
    sum += dot(v, v);
  }
  let v_factor = inverseSqrt(workgroup_sum(sum, me) / f32(quads * 4u) + params.eps);
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let v = v_factor * (h[first + i] + norms[i] * (o_factor * o[first + i]));
    for (var which = 0u; which < 3u; which++) {
      x[which * params.rows * quads + first + i] = norms[(which + 1u) * quads + i] * v;
    }
  }
}
