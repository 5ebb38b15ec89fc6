// y[r, n] = Σ_k W[n, k] · x[r, k], for a few rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// {{LANES}} lanes share a row of W, a workgroup of 256 does 256 / {{LANES}} of them for one r. x goes through workgroup
// memory in slices of 2048, so any K fits.
//
//   x or residual stream   RESIDUAL: x is made from h and o on the way (residual.wgsl); else x [R, K]
//   y [R, y_stride]        written from y_offset on; what is written:
//     GEGLU    gelu(y₂ₙ) · y₂ₙ₊₁            rows of W alternate between gate and up; N/2 results
//     PLE      gelu(yₙ) · side[r, side_offset + n]
//     SOFTCAP  cap · tanh(yₙ / cap)
//   EXPERTS: group.z is a slot; chosen[r, slot] picks the expert whose N rows are used, y is [R, slots, N]. With
//     WEIGHTED the input is x[r, slot] and the result is multiplied by weights[r, slot]; else the input is x[r].
//   SELECT: group.y counts through `picked`, which names the row of h to use; y is indexed by group.y.
//
// Grid: (N / rows per workgroup, R, slots).

struct Params {
  blocks: u32,    // K / 32
  n: u32,         // rows of W (of one expert) in this part
  y_stride: u32,
  y_offset: u32,
  scale: f32,
  eps: f32,
  cap: f32,
  side_stride: u32,
  side_offset: u32,
  slots: u32,
  first_expert: u32,
  experts: u32,   // in this part
}
@group(0) @binding(0) var<uniform> params: Params;
//#include block
//#include reduce
//#include gelu
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
//#if RESIDUAL
//#include residual
//#else
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;

fn input4(r: u32, i: u32) -> vec4<f32> {
  return x[r * params.blocks * 8u + i];
}
//#endif
//#if PLE
@group(0) @binding(8) var<storage, read> side: array<f32>;
//#endif
//#if EXPERTS
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
//#if WEIGHTED
@group(0) @binding(5) var<storage, read> weights: array<f32>;
//#endif
//#endif
//#if SELECT
@group(0) @binding(8) var<storage, read> picked: array<u32>;
//#endif
//#if SOFTCAP
//#include softcap
//#endif

const LANES = {{LANES}}u;
const ROWS = 256u / LANES;
const SLICE = 64u;  // blocks of x in workgroup memory at a time

// A block of x takes nine vectors, not eight, so that lanes a block apart meet different memory banks.
var<workgroup> slice: array<vec4<f32>, SLICE * 9u>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  var input_row = group.y;
  var first_row = 0u;
//#if SELECT
  input_row = picked[group.y];
//#endif
//#if EXPERTS
  let expert = chosen[group.y * params.slots + group.z] - params.first_expert;
  if (expert >= params.experts) { return; }
  first_row = expert * params.n;
//#if WEIGHTED
  input_row = group.y * params.slots + group.z;
//#endif
//#endif
//#if RESIDUAL
  prepare(input_row, thread, group.x == 0u);
//#endif
  let lane = thread % LANES;
  let n = group.x * ROWS + thread / LANES;
  var sum = 0.0;
  for (var start = 0u; start < params.blocks; start += SLICE) {
    let count = min(SLICE, params.blocks - start);
    workgroupBarrier();
    for (var i = thread; i < count * 8u; i += 256u) {
      slice[i + i / 8u] = input4(input_row, start * 8u + i);
    }
    workgroupBarrier();
    if (n < params.n) {
      for (var b = lane; b < count; b += LANES) {
        let w = load32(first_row + n, start + b);
        let at = b * 9u;
        sum += dot(w.a, slice[at]) + dot(w.b, slice[at + 1u]) + dot(w.c, slice[at + 2u]) + dot(w.d, slice[at + 3u])
          + dot(w.e, slice[at + 4u]) + dot(w.f, slice[at + 5u]) + dot(w.g, slice[at + 6u]) + dot(w.h, slice[at + 7u]);
      }
    }
  }
  workgroupBarrier();
  reduce_scratch[thread] = sum;
  workgroupBarrier();
  if (thread < ROWS) { finish(group, thread); }
}

fn total(row: u32) -> f32 {
  var sum = 0.0;
  for (var lane = 0u; lane < LANES; lane++) { sum += reduce_scratch[row * LANES + lane]; }
  return sum;
}

fn finish(group: vec3<u32>, local_row: u32) {
//#if GEGLU
  let n = (group.x * ROWS + local_row) / 2u;
  if ((local_row & 1u) == 1u || 2u * n >= params.n) { return; }
  var result = gelu(total(local_row)) * total(local_row + 1u);
  let width = params.n / 2u;
//#else
  let n = group.x * ROWS + local_row;
  if (n >= params.n) { return; }
  var result = total(local_row);
  let width = params.n;
//#endif
//#if PLE
  result = gelu(result) * side[group.y * params.side_stride + params.side_offset + n];
//#endif
//#if SOFTCAP
  result = softcap(result, params.cap);
//#endif
//#if EXPERTS
  let at = group.y * params.slots + group.z;
//#if WEIGHTED
  result *= weights[at];
//#endif
  y[at * width + n] = result;
//#else
  y[group.y * params.y_stride + params.y_offset + n] = result;
//#endif
}
