// x[r] = norm ⊙ rms(v), v = h[r]; with ADD v = h[r] + o[r], which goes to h_out.
//
//   h, o, h_out, x [R, K] f32; norm [K] f32
//
// One workgroup per row. Grid: (R). K % 4 == 0.

struct Params {
  quads: u32,  // K / 4
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> norm: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;
//#if ADD
@group(0) @binding(4) var<storage, read> o: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> h_out: array<vec4<f32>>;
//#endif
//#include reduce

fn value(at: u32) -> vec4<f32> {
//#if ADD
  return h[at] + o[at];
//#else
  return h[at];
//#endif
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let first = group.x * params.quads;
  var sum = 0.0;
  for (var i = thread; i < params.quads; i += {{THREADS}}u) {
    let v = value(first + i);
    sum += dot(v, v);
//#if ADD
    h_out[first + i] = v;
//#endif
  }
  let factor = inverseSqrt(workgroup_sum(sum, me) / f32(params.quads * 4u) + params.eps);
  for (var i = thread; i < params.quads; i += {{THREADS}}u) { x[first + i] = norm[i] * (factor * value(first + i)); }
}
