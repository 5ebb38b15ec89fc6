// y[r, n] = Σ_k W[n, k] · x[r, k], for a few rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// {{LANES}} lanes share two rows of W, and each has {{DEPTH}} blocks of either in flight: the first are asked for before x is
// made, and as soon as one is used the next. A workgroup of 256 does 256 / {{LANES}} such pairs of rows at a time for one r,
// and goes on with the rows a whole grid further. x goes through workgroup memory in slices of {{SLICE}} blocks: as a WHOLE, once,
// where it fits.
//
//   x                      MADE: on the way, from the residual stream (residual.wgsl) or, JOIN, from what the splits of a
//                          history gave (joined.wgsl), as a WHOLE then; else x [R, K]
//   y [R, y_stride]        written from y_offset on; what is written:
//     GEGLU    gelu(y₂ₙ) · y₂ₙ₊₁            rows of W alternate between gate and up; N/2 results
//     PLE      gelu(yₙ) · side[r, side_offset + n]
//     SOFTCAP  cap · tanh(yₙ / cap)
//   LOW: an adapter's Σ_j Σ_s z[r, t(n)·R + j, s] · b[j, n] is added to yₙ before all that (low.wgsl); with MEETS the
//     first workgroups make that z (meeting.wgsl), else it is there
//
// The rest of the constants is explained in matvec_slices.wgsl. Experts have a kernel of their own (experts_matvec.wgsl).
//
// Grid: (makers of z + up to N / rows at a time, R).

struct Params {
  blocks: u32,    // K / 32
  n: u32,         // rows of W in this part
  y_stride: u32,
  y_offset: u32,
//#if SOFTCAP
  cap: f32,
//#endif
//#if PLE
  side_stride: u32,
  side_offset: u32,
//#endif
//#if MADE
//#if JOIN
  heads: u32,
  splits: u32,
  ends: u32,      // where the pairs of (max, sum) begin in `partial`, in vectors of four
//#else
  scale: f32,
  eps: f32,
//#if PARTS
  o_parts: u32,
  o_step: u32,  // vectors of four from one part to the next
//#endif
//#endif
//#endif
//#if LOW
  rank: u32,      // times the shares, and what else low.wgsl wants to know
  z_stride: u32,
  b_stride: u32,
  low_first: u32,
  edge1: u32,
  edge2: u32,
  alternate: u32,
//#endif
//#if MEETS
  makers: u32,    // workgroups that make z; none where a dispatch before has had them
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
//#include reduce
//#include gelu
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
//#if MADE
//#include {{MADE}}
//#else
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
//#endif
//#if PLE
@group(0) @binding(8) var<storage, read> side: array<f32>;
//#endif
//#if LOW
@group(0) @binding(10) var<storage, read> b: array<f32>;
//#include low
//#if MEETS
//#include meeting
//#else
@group(0) @binding(9) var<storage, read> z: array<f32>;
//#endif
//#endif
//#if SOFTCAP
//#include softcap
//#endif

//#include matvec_slices

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  var own_place = group.x;
  var places = groups.x;
//#if MEETS
  own_place -= params.makers;
  places -= params.makers;
//#endif
  let input_row = group.y;
  var first_row = 0u;
  let lane = thread % LANES;
  let own = 2u * (thread / LANES);
  let stride = places * ROWS;
//#for i in 2
  var row{{i}} = first_row + clamped(own_place * ROWS + own + {{i}}u);
//#endfor
//#for d in DEPTH
//#for i in 2
  var raw{{d}}_{{i}} = fetch(row{{i}}, held(lane + {{d}}u * LANES));
//#endfor
//#endfor
//#if MADE
  prepare(input_row, me, group.x == 0u);
//#endif
//#if MEETS
  if (group.x < params.makers) {
    make_z(group, me);
    return;
  }
//#endif
//#if MADE
//#if WHOLE
  lay_out(0u, thread);
//#endif
//#else
//#for j in SPAN
  var near{{j}} = get_x(input_row, 2u * (thread + {{j}}u * 256u));
  var far{{j}} = get_x(input_row, 2u * (thread + {{j}}u * 256u) + 1u);
//#endfor
//#if WHOLE
//#for j in SPAN
  put(thread + {{j}}u * 256u, near{{j}}, far{{j}});
//#endfor
//#endif
//#endif
//#if WHOLE
//#if !SUBGROUPS
  sum_slice(thread);
//#endif
  workgroupBarrier();
//#endif
  for (var first = own_place * ROWS; first < params.n; first += stride) {
    let last_rows = first + stride >= params.n;
//#for i in 2
    var sum{{i}} = 0.0;
//#endfor
//#if LOW
//#if !MEETS
    // Here and not earlier: a longer kernel, or one that keeps more in registers, would lose more than it waits for.
//#for i in 2
    let z{{i}} = low_z(group.y, row{{i}});
//#endfor
    for (var j = lane; j < params.rank; j += LANES) {
//#for i in 2
      sum{{i}} += z[z{{i}} + j] * low_b(row{{i}}, j / {{SHARES}}u);
//#endfor
    }
//#endif
//#endif
//#include matvec_blocks
//#if MEETS
    // row0 and row1 are the next ones by now.
//#for i in 2
    let n{{i}} = min(first + own + {{i}}u, params.n - 1u);
    let z{{i}} = low_z(group.y, n{{i}});
//#endfor
    for (var j = lane; j < params.rank; j += LANES) {
//#for i in 2
      sum{{i}} += met(z{{i}} + j) * low_b(n{{i}}, j / {{SHARES}}u);
//#endfor
    }
//#endif
//#include matvec_ends
  }
}

// Rows past the end are computed, and not written. Of W there is room for them (model/weights.py), so the first ones are
// asked for while the parameters are still on their way; an adapter's b has none.
fn clamped(n: u32) -> u32 {
  var row = n;
//#if LOW
  row = min(row, params.n - 1u);
//#endif
  return row;
}

fn write(group: vec3<u32>, n: u32, width: u32, value: f32) {
  var result = value;
//#if PLE
  result = gelu(result) * side[group.y * params.side_stride + params.side_offset + n];
//#endif
//#if SOFTCAP
  result = softcap(result, params.cap);
//#endif
  y[group.y * params.y_stride + params.y_offset + n] = result;
}
