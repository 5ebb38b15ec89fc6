// What stands in front of most matmuls, for row r of the residual stream:
//
//   v = scale · (h + post ⊙ rms(o))           the residual add that ends the block before
//   x = norm ⊙ rms(v), or v itself            the input of the block that follows
//
//   h, o  [R, K] f32; norms [2, K] f32: post, norm; h_out [R, K] f32 gets v (from one workgroup of each row)
//   PARTS: o [parts, R, K], partial sums to be added up in this order
//
// `prepare` reads memory once and leaves x in registers: near{j} and far{j} of a thread are elements 8i … 8i + 3 and
// 8i + 4 … 8i + 7 with i = thread + {{THREADS}} j, zeros past the end. {{PAIRS}} is K / 8 / {{THREADS}}, rounded up.

@group(0) @binding(3) var<storage, read> h: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> o: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> h_out: array<vec4<f32>>;

//#for j in PAIRS
var<private> near{{j}}: vec4<f32>;
var<private> far{{j}}: vec4<f32>;
//#endfor

//#include pending

fn prepare(r: u32, me: Thread, writes: bool) {
  let quads = row_blocks() * 8u;
  let first = r * quads;
  var sum = 0.0;
//#for j in PAIRS
  let i{{j}} = 2u * (me.index + {{j}}u * {{THREADS}}u);
  var o_near{{j}} = vec4<f32>();
  var o_far{{j}} = vec4<f32>();
  var post_near{{j}} = vec4<f32>();
  var post_far{{j}} = vec4<f32>();
  var norm_near{{j}} = vec4<f32>();
  var norm_far{{j}} = vec4<f32>();
  near{{j}} = vec4<f32>();
  far{{j}} = vec4<f32>();
  if (i{{j}} < quads) {
    o_near{{j}} = pending(first + i{{j}});
    o_far{{j}} = pending(first + i{{j}} + 1u);
    near{{j}} = h[first + i{{j}}];
    far{{j}} = h[first + i{{j}} + 1u];
    post_near{{j}} = norms[i{{j}}];
    post_far{{j}} = norms[i{{j}} + 1u];
//#if NORM
    norm_near{{j}} = norms[quads + i{{j}}];
    norm_far{{j}} = norms[quads + i{{j}} + 1u];
//#endif
  }
//#endfor
//#for j in PAIRS
  sum += dot(o_near{{j}}, o_near{{j}}) + dot(o_far{{j}}, o_far{{j}});
//#endfor
  let o_factor = inverseSqrt(workgroup_sum(sum, me) / f32(quads * 4u) + params.eps);
  sum = 0.0;
//#for j in PAIRS
  near{{j}} = params.scale * (near{{j}} + o_factor * (post_near{{j}} * o_near{{j}}));
  far{{j}} = params.scale * (far{{j}} + o_factor * (post_far{{j}} * o_far{{j}}));
  sum += dot(near{{j}}, near{{j}}) + dot(far{{j}}, far{{j}});
  if (writes && i{{j}} < quads) {
    h_out[first + i{{j}}] = near{{j}};
    h_out[first + i{{j}} + 1u] = far{{j}};
  }
//#endfor
//#if NORM
  let factor = inverseSqrt(workgroup_sum(sum, me) / f32(quads * 4u) + params.eps);
//#for j in PAIRS
  near{{j}} = norm_near{{j}} * (factor * near{{j}});
  far{{j}} = norm_far{{j}} * (factor * far{{j}});
//#endfor
//#endif
}
