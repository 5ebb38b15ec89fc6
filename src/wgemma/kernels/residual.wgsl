// What stands in front of most matmuls, for row r of the residual stream:
//
//   v = scale · (h + post ⊙ rms(o))           the residual add that ends the block before
//   x = norm ⊙ rms(v), or v itself            the input of the block that follows
//
//   h, o  [R, K] f32; norms [2, K] f32: post, norm; h_out [R, K] f32 gets v (from one workgroup of each row)
//
// `prepare` leaves the two factors in registers; `input4(r, i)` gives elements 4i … 4i + 3 of x.

@group(0) @binding(3) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> o: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> h_out: array<vec4<f32>>;

var<private> o_factor: f32;
var<private> v_factor: f32;

fn residual4(r: u32, i: u32) -> vec4<f32> {
  let at = r * params.blocks * 8u + i;
  return params.scale * (h[at] + norms[i] * (o_factor * o[at]));
}

fn prepare(r: u32, thread: u32, writes: bool) {
  let quads = params.blocks * 8u;
  var sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let part = o[r * quads + i];
    sum += dot(part, part);
  }
  o_factor = inverseSqrt(workgroup_sum(sum, thread) / f32(quads * 4u) + params.eps);
  sum = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let v = residual4(r, i);
    sum += dot(v, v);
    if (writes) { h_out[r * quads + i] = v; }
  }
  v_factor = inverseSqrt(workgroup_sum(sum, thread) / f32(quads * 4u) + params.eps);
}

fn input4(r: u32, i: u32) -> vec4<f32> {
//#if NORM
  return norms[params.blocks * 8u + i] * (v_factor * residual4(r, i));
//#else
  return residual4(r, i);
//#endif
}
