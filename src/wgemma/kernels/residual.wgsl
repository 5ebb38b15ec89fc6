// What stands in front of most matmuls, for row r of the residual stream:
//
//   v = scale · (h + post ⊙ rms(o))           the residual add that ends the block before
//   x = norm ⊙ rms(v), or v itself            the input of the block that follows
//
//   h, o  [R, K] f32; norms [2, K] f32: post, norm; h_out [R, K] f32 gets v (from one workgroup of each row)
//
// `prepare` reads memory once and leaves x in registers: kept[j] of a thread is elements 4i … 4i + 3 with
// i = thread + {{THREADS}} j. {{QUADS}} is K / 4 / {{THREADS}}, rounded up.

@group(0) @binding(3) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> o: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> h_out: array<vec4<f32>>;

var<private> kept: array<vec4<f32>, {{QUADS}}>;

fn prepare(r: u32, thread: u32, writes: bool) {
  let quads = params.blocks * 8u;
  var added: array<vec4<f32>, {{QUADS}}>;
//#if NORM
  var norm: array<vec4<f32>, {{QUADS}}>;
//#endif
  var sum = 0.0;
  for (var j = 0u; j < {{QUADS}}u; j++) {
    let i = thread + {{THREADS}}u * j;
    if (i < quads) {
      let part = o[r * quads + i];
      kept[j] = h[r * quads + i];
      added[j] = norms[i] * part;
//#if NORM
      norm[j] = norms[quads + i];
//#endif
      sum += dot(part, part);
    }
  }
  let o_factor = inverseSqrt(workgroup_sum(sum, thread) / f32(quads * 4u) + params.eps);
  sum = 0.0;
  for (var j = 0u; j < {{QUADS}}u; j++) {
    let i = thread + {{THREADS}}u * j;
    if (i < quads) {
      kept[j] = params.scale * (kept[j] + o_factor * added[j]);
      sum += dot(kept[j], kept[j]);
      if (writes) { h_out[r * quads + i] = kept[j]; }
    }
  }
//#if NORM
  let factor = inverseSqrt(workgroup_sum(sum, thread) / f32(quads * 4u) + params.eps);
  for (var j = 0u; j < {{QUADS}}u; j++) { kept[j] = norm[j] * (factor * kept[j]); }
//#endif
}
