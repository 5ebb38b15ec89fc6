// y[r, s, n] = Σ_k W[e, n, k] · x[r, k] with the expert e = chosen[r, s] of every slot s, for a few rows r; W in planes
// (block_{{TYPE}}.wgsl), everything else f32.
//
//   WEIGHTED  the input is x[r, s], and the result is multiplied by weights[r, s]
//   GEGLU     gelu(y₂ₙ) · y₂ₙ₊₁ is written: rows of W alternate between gate and up; N/2 results
//
//   chosen, weights [R, slots]; x [R, K], or [R, slots, K] if WEIGHTED; y [R, slots, N]
//
// Rows, lanes and slices of x are shared out as in matvec.wgsl (matvec_slices.wgsl has the other constants). Experts that
// lie in another part of W are left to another dispatch.
//
// Grid: (up to N / rows at a time, R, slots).

struct Params {
  blocks: u32,    // K / 32
  n: u32,         // rows of W of one expert
  slots: u32,
  first_expert: u32,
  experts: u32,   // in this part
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
//#include reduce
//#include gelu
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
//#if WEIGHTED
@group(0) @binding(5) var<storage, read> weights: array<f32>;
//#endif

//#include matvec_slices

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  let expert = chosen[group.y * params.slots + group.z] - params.first_expert;
  if (expert >= params.experts) { return; }
  let first_row = expert * params.n;
//#if WEIGHTED
  let input_row = group.y * params.slots + group.z;
//#else
  let input_row = group.y;
//#endif
  let lane = thread % LANES;
  let own = 2u * (thread / LANES);
  let stride = groups.x * ROWS;
//#for i in 2
  var row{{i}} = first_row + clamped(group.x * ROWS + own + {{i}}u);
//#endfor
//#for d in DEPTH
//#for i in 2
  var raw{{d}}_{{i}} = fetch(row{{i}}, held(lane + {{d}}u * LANES));
//#endfor
//#endfor
//#for j in SPAN
  var near{{j}} = get_x(input_row, 2u * (thread + {{j}}u * 256u));
  var far{{j}} = get_x(input_row, 2u * (thread + {{j}}u * 256u) + 1u);
//#endfor
//#if WHOLE
//#for j in SPAN
  put(thread + {{j}}u * 256u, near{{j}}, far{{j}});
//#endfor
//#if !SUBGROUPS
  sum_slice(thread);
//#endif
  workgroupBarrier();
//#endif
  for (var first = group.x * ROWS; first < params.n; first += stride) {
    let last_rows = first + stride >= params.n;
//#for i in 2
    var sum{{i}} = 0.0;
//#endfor
//#include matvec_blocks
//#include matvec_ends
  }
}

// Rows past the end are computed, and not written: those of W are another expert's.
fn clamped(n: u32) -> u32 {
  return min(n, params.n - 1u);
}

fn write(group: vec3<u32>, n: u32, width: u32, value: f32) {
  let at = group.y * params.slots + group.z;
//#if WEIGHTED
  y[at * width + n] = value * weights[at];
//#else
  y[at * width + n] = value;
//#endif
}
