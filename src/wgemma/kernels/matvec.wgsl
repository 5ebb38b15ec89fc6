// y[r, n] = Σ_k W[n, k] · x[r, k], for a few rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// {{LANES}} lanes share two rows of W, a workgroup of 256 does 256 / {{LANES}} such pairs at a time for one r, and goes on
// with the rows a whole grid further: fewer workgroups than rows make x less often. x goes through workgroup memory in slices
// of {{SLICE}} blocks, so any K fits.
//
//   x or residual stream   RESIDUAL: x is made from h and o on the way (residual.wgsl); else x [R, K]
//   y [R, y_stride]        written from y_offset on; what is written:
//     GEGLU    gelu(y₂ₙ) · y₂ₙ₊₁            rows of W alternate between gate and up; N/2 results
//     PLE      gelu(yₙ) · side[r, side_offset + n]
//     SOFTCAP  cap · tanh(yₙ / cap)
//   LOW: an adapter's Σ_j z[r, t(n)·R + j] · b[j, n] is added to yₙ before all that (low.wgsl)
//   EXPERTS: group.z is a slot; chosen[r, slot] picks the expert whose N rows are used, y is [R, slots, N]. With
//     WEIGHTED the input is x[r, slot] and the result is multiplied by weights[r, slot]; else the input is x[r].
//   WIDE: a subgroup has {{LANES}} lanes or more.
//   SELECT: group.y counts through `picked`, which names the row of h to use; y is indexed by group.y.
//
// Grid: (up to N / rows at a time, R, slots).

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
//#if LOW
  rank: u32,      // and what else low.wgsl wants to know
  z_stride: u32,
  b_stride: u32,
  low_first: u32,
  edge1: u32,
  edge2: u32,
  alternate: u32,
//#endif
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
//#endif
//#if PLE
@group(0) @binding(8) var<storage, read> side: array<f32>;
//#endif
//#if LOW
@group(0) @binding(9) var<storage, read> z: array<f32>;
@group(0) @binding(10) var<storage, read> b: array<f32>;
//#include low
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
const ROWS = 2u * (256u / LANES);
const SLICE = {{SLICE}}u;  // blocks of x in workgroup memory at a time

// A block of x takes nine vectors, not eight: the ninth holds its sum, and lanes a block apart meet different banks.
var<workgroup> slice: array<vec4<f32>, SLICE * 9u>;

//#if RESIDUAL
// x as `prepare` left it; where it is longer than the slice, this slice's share of it.
fn load_slice(row: u32, start: u32, count: u32, thread: u32) {
  workgroupBarrier();
  for (var j = 0u; j < {{QUADS}}u; j++) {
    let i = thread + 256u * j - start * 8u;
    if (i < count * 8u) { slice[i + i / 8u] = kept[j]; }
  }
  sum_slice(count, thread);
}
//#else
fn load_slice(row: u32, start: u32, count: u32, thread: u32) {
  workgroupBarrier();
  for (var i = thread; i < count * 8u; i += 256u) {
    slice[i + i / 8u] = x[row * params.blocks * 8u + start * 8u + i];
  }
  sum_slice(count, thread);
}
//#endif

fn sum_slice(count: u32, thread: u32) {
  workgroupBarrier();
  for (var b = thread; b < count; b += 256u) {
    let at = b * 9u;
    let sum = slice[at] + slice[at + 1u] + slice[at + 2u] + slice[at + 3u]
      + slice[at + 4u] + slice[at + 5u] + slice[at + 6u] + slice[at + 7u];
    slice[at + 8u].x = sum.x + sum.y + sum.z + sum.w;
  }
  workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
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
  // Bytes are asked for before they are needed: the first blocks' before x is made, the next ones' while these are
  // computed with, across rows too.
  let lane = thread % LANES;
  let pair = 2u * (thread / LANES);
  let stride = groups.x * ROWS;
  let early = min(lane, params.blocks - 1u);
  var raw0 = fetch(first_row + clamped(group.x * ROWS + pair), early);
  var raw1 = fetch(first_row + clamped(group.x * ROWS + pair + 1u), early);
//#if RESIDUAL
  prepare(input_row, thread, group.x == 0u);
//#endif
  // Where x fits as a whole it is laid out once, for all the rows this workgroup does.
  let whole = params.blocks <= SLICE;
  if (whole) { load_slice(input_row, 0u, params.blocks, thread); }
  for (var first = group.x * ROWS; first < params.n; first += stride) {
    let row0 = first_row + clamped(first + pair);
    let row1 = first_row + clamped(first + pair + 1u);
    let after0 = first_row + clamped(first + stride + pair);
    let after1 = first_row + clamped(first + stride + pair + 1u);
    var sum0 = 0.0;
    var sum1 = 0.0;
//#if LOW
    let z0 = low_z(group.y, row0);
    let z1 = low_z(group.y, row1);
    for (var j = lane; j < params.rank; j += LANES) {
      sum0 += z[z0 + j] * low_b(row0, j);
      sum1 += z[z1 + j] * low_b(row1, j);
    }
//#endif
    for (var start = 0u; start < params.blocks; start += SLICE) {
      let count = min(SLICE, params.blocks - start);
      if (!whole) {
        load_slice(input_row, start, count, thread);
        raw0 = fetch(row0, start + min(lane, count - 1u));
        raw1 = fetch(row1, start + min(lane, count - 1u));
      }
      for (var b = lane; b < count; b += LANES) {
        let more = b + LANES < count;
        let ahead = select(early, start + b + LANES, more);
        let next0 = fetch(select(after0, row0, more), ahead);
        let next1 = fetch(select(after1, row1, more), ahead);
        // Two rows at once, so that every block of x serves twice.
        let at = b * 9u;
        let part = Block(
          slice[at], slice[at + 1u], slice[at + 2u], slice[at + 3u],
          slice[at + 4u], slice[at + 5u], slice[at + 6u], slice[at + 7u],
        );
        let part_sum = slice[at + 8u].x;
        sum0 += dot32(raw0, part, part_sum);
        sum1 += dot32(raw1, part, part_sum);
        raw0 = next0;
        raw1 = next1;
      }
    }
    settle(vec2<f32>(sum0, sum1), group, first, thread);
  }
}

// Rows past the end are computed as the last one, and not written.
fn clamped(n: u32) -> u32 {
  return min(n, params.n - 1u);
}

//#if WIDE
// A row's lanes lie in one subgroup: nothing goes through memory, and no workgroup waits for itself.
fn settle(value: vec2<f32>, group: vec3<u32>, first: u32, thread: u32) {
  var sums = value;
  for (var step = 1u; step < LANES; step *= 2u) { sums += subgroupShuffleXor(sums, step); }
  if (thread % LANES == 0u) { finish(group, first + 2u * (thread / LANES), sums); }
}
//#else
var<workgroup> pairs: array<vec2<f32>, 256>;

fn settle(value: vec2<f32>, group: vec3<u32>, first: u32, thread: u32) {
  workgroupBarrier();
  pairs[thread] = value;
  workgroupBarrier();
  if (thread >= 256u / LANES) { return; }
  var sums = vec2<f32>();
  for (var lane = 0u; lane < LANES; lane++) { sums += pairs[thread * LANES + lane]; }
  finish(group, first + 2u * thread, sums);
}
//#endif

// Writes what rows n and n + 1 of W gave.
fn finish(group: vec3<u32>, n: u32, sums: vec2<f32>) {
//#if GEGLU
  if (n < params.n) { write(group, n / 2u, params.n / 2u, gelu(sums.x) * sums.y); }
//#else
  if (n < params.n) { write(group, n, params.n, sums.x); }
  if (n + 1u < params.n) { write(group, n + 1u, params.n, sums.y); }
//#endif
}

fn write(group: vec3<u32>, n: u32, width: u32, value: f32) {
  var result = value;
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
