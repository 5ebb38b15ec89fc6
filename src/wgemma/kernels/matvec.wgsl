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
//   EXPERTS: group.z is a slot; chosen[r, slot] picks the expert whose N rows are used, y is [R, slots, N]. With
//     WEIGHTED the input is x[r, slot] and the result is multiplied by weights[r, slot]; else the input is x[r].
//   WITHIN: so many lanes of a row lie in one subgroup; WIDE: all.
//   QUICK: x is rounded to eight bits per number, or with FINE to sixteen, with a scale per 32; needs SUBGROUPS.
//   SELECT: group.y counts through `picked`, which names the row of h to use; y is indexed by group.y.
//
// Grid: (makers of z + up to N / rows at a time, R, slots).

struct Params {
  blocks: u32,    // K / 32
  n: u32,         // rows of W (of one expert) in this part
//#if EXPERTS
  slots: u32,
  first_expert: u32,
  experts: u32,   // in this part
//#else
  y_stride: u32,
  y_offset: u32,
//#endif
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
const STEP = {{DEPTH}}u * LANES;
const SETS = 256u / LANES;
const ROWS = 2u * SETS;
const PIECES = 256u / {{WITHIN}}u;
const SLICE = {{SLICE}}u;  // blocks of x in workgroup memory at a time, a multiple of STEP

//#if QUICK
// Word j of block b lies at j · SLICE + b, so that neighbouring lanes meet different banks.
var<workgroup> words: array<u32, SLICE * 8u>;
//#if FINE
var<workgroup> fine: array<u32, SLICE * 8u>;  // the lower bytes, signed as well
//#endif
var<workgroup> tails: array<f32, SLICE * 3u>;  // the scale, and the sums of either half

//#if FINE
const LARGEST = 32639.0;  // 127 · 256 + 127
//#else
const LARGEST = 127.0;
//#endif

// Elements 8i … 8i + 7 of the slice; four threads have a block's.
fn put(i: u32, near: vec4<f32>, far: vec4<f32>) {
  // Sizes in the order of their bits, where NaN is larger than all.
  let sizes = max(bitcast<vec4<u32>>(near) & vec4<u32>(0x7fffffffu), bitcast<vec4<u32>>(far) & vec4<u32>(0x7fffffffu));
  var size = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
  size = max(size, subgroupShuffleXor(size, 1u));
  size = max(size, subgroupShuffleXor(size, 2u));
  let most = bitcast<f32>(size);
  let scale = most / LARGEST;
  let shrink = select(LARGEST / most, 0.0, size == 0u);
  var low = vec4<i32>(round(near * shrink));
  var high = vec4<i32>(round(far * shrink));
  let both = low + high;
  var sum = (both.x + both.y) + (both.z + both.w);
  sum += subgroupShuffleXor(sum, 1u);
  if (i >= SLICE * 4u) { return; }
  let block = i / 4u;
  let j = i % 4u;
//#if FINE
  fine[2u * j * SLICE + block] = pack4xI8(low);
  fine[(2u * j + 1u) * SLICE + block] = pack4xI8(high);
  low = (low + 128) >> vec4<u32>(8u);
  high = (high + 128) >> vec4<u32>(8u);
//#endif
  words[2u * j * SLICE + block] = pack4xI8(low);
  words[(2u * j + 1u) * SLICE + block] = pack4xI8(high);
  if (j == 0u) { tails[block] = scale; }
  if (j % 2u == 0u) { tails[SLICE * (1u + j / 2u) + block] = scale * f32(sum); }
}

fn take(block: u32) -> Bytes {
  return Bytes(
    vec4<u32>(words[block], words[SLICE + block], words[2u * SLICE + block], words[3u * SLICE + block]),
    vec4<u32>(words[4u * SLICE + block], words[5u * SLICE + block], words[6u * SLICE + block], words[7u * SLICE + block]),
    tails[block], vec2<f32>(tails[SLICE + block], tails[2u * SLICE + block]),
//#if FINE
    vec4<u32>(fine[block], fine[SLICE + block], fine[2u * SLICE + block], fine[3u * SLICE + block]),
    vec4<u32>(fine[4u * SLICE + block], fine[5u * SLICE + block], fine[6u * SLICE + block], fine[7u * SLICE + block]),
//#endif
  );
}

fn product(raw: Raw, x: Bytes) -> f32 {
  return dot_bytes(raw, x);
}
//#else
// A block of x takes nine vectors, not eight: the ninth holds its sum, and lanes a block apart meet different banks.
var<workgroup> slice: array<vec4<f32>, SLICE * 9u>;

struct Summed {
  block: Block,
  sum: f32,
}

fn put(i: u32, near: vec4<f32>, far: vec4<f32>) {
//#if SUBGROUPS
  let four = near + far;
  var sum = (four.x + four.y) + (four.z + four.w);
  sum += subgroupShuffleXor(sum, 1u);
  sum += subgroupShuffleXor(sum, 2u);
  if (i < SLICE * 4u && i % 4u == 0u) { slice[9u * (i / 4u) + 8u].x = sum; }
//#endif
  if (i >= SLICE * 4u) { return; }
  let at = 2u * i + i / 4u;
  slice[at] = near;
  slice[at + 1u] = far;
}

//#if !SUBGROUPS
fn sum_slice(thread: u32) {
  workgroupBarrier();
  for (var at = thread * 9u; at < SLICE * 9u; at += 256u * 9u) {
    let sum = slice[at] + slice[at + 1u] + slice[at + 2u] + slice[at + 3u]
      + slice[at + 4u] + slice[at + 5u] + slice[at + 6u] + slice[at + 7u];
    slice[at + 8u].x = (sum.x + sum.y) + (sum.z + sum.w);
  }
}
//#endif

fn take(block: u32) -> Summed {
  let at = block * 9u;
  return Summed(
    Block(
      slice[at], slice[at + 1u], slice[at + 2u], slice[at + 3u],
      slice[at + 4u], slice[at + 5u], slice[at + 6u], slice[at + 7u],
    ),
    slice[at + 8u].x,
  );
}

fn product(raw: Raw, x: Summed) -> f32 {
  return dot32(raw, x.block, x.sum);
}
//#endif

//#if !WIDE
var<workgroup> pieces: array<f32, 2u * PIECES>;
//#endif

//#if MADE
// The slice that begins with block `start`, of x as `prepare` left it; what lies past the end of x is zeros.
fn lay_out(start: u32, thread: u32) {
//#for j in PAIRS
  put(thread + {{j}}u * 256u - start * 4u, near{{j}}, far{{j}});
//#endfor
  // Registers end with x, or up to a workgroup's worth of them later; the slice may go on.
  for (var first = {{PAIRS}}u * 256u; first < (start + SLICE) * 4u; first += 256u) {
    put(first + thread - start * 4u, vec4<f32>(), vec4<f32>());
  }
}
//#else
fn get_x(row: u32, i: u32) -> vec4<f32> {
  let quads = row_blocks() * 8u;
  if (i >= quads) { return vec4<f32>(); }
  return x[row * quads + i];
}
//#endif

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  var own_place = group.x;
  var places = groups.x;
//#if MEETS
  own_place -= params.makers;
  places -= params.makers;
//#endif
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
    // Told by a parameter, not by a constant, lest a compiler unroll it: fetching instructions takes time, too.
    for (var start = 0u; start < params.blocks; start += STEP) {
      // What is fetched next: further blocks of these rows, or the first ones of the next rows.
      let done = start + STEP >= params.blocks;
      let ahead = select(start + STEP, 0u, done);
      let more = !(done && last_rows);
//#if WHOLE
      let base = start;
//#else
      let base = start % SLICE;
      if (base == 0u) {
        workgroupBarrier();
//#if MADE
        lay_out(start, thread);
//#else
//#for j in SPAN
        put(thread + {{j}}u * 256u, near{{j}}, far{{j}});
//#endfor
//#endif
//#if !SUBGROUPS
        sum_slice(thread);
//#endif
        workgroupBarrier();
//#if !MADE
        let next = select(start + SLICE, 0u, start + SLICE >= params.blocks) * 4u;
//#for j in SPAN
        near{{j}} = get_x(input_row, 2u * (next + thread + {{j}}u * 256u));
        far{{j}} = get_x(input_row, 2u * (next + thread + {{j}}u * 256u) + 1u);
//#endfor
//#endif
      }
//#endif
      if (done) {
//#for i in 2
        row{{i}} = first_row + clamped(first + stride + own + {{i}}u);
//#endfor
      }
//#for d in DEPTH
      let block{{d}} = take(base + {{d}}u * LANES + lane);
//#for i in 2
      sum{{i}} += product(raw{{d}}_{{i}}, block{{d}});
      if (more) { raw{{d}}_{{i}} = fetch(row{{i}}, held(ahead + {{d}}u * LANES + lane)); }
//#endfor
//#endfor
    }
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
    // The lanes' sums become one.
//#if SUBGROUPS
//#for i in 2
    for (var step = 1u; step < {{WITHIN}}u; step *= 2u) { sum{{i}} += subgroupShuffleXor(sum{{i}}, step); }
//#endfor
//#endif
//#if WIDE
    let at = first + own;
    let writes = lane == 0u;
//#else
    workgroupBarrier();
    if (thread % {{WITHIN}}u == 0u) {
//#for i in 2
      pieces[{{i}}u * PIECES + thread / {{WITHIN}}u] = sum{{i}};
//#endfor
    }
    workgroupBarrier();
    let at = first + 2u * thread;
    let writes = thread < SETS;
    if (writes) {
//#for i in 2
      sum{{i}} = 0.0;
//#endfor
      for (var j = thread * (LANES / {{WITHIN}}u); j < (thread + 1u) * (LANES / {{WITHIN}}u); j++) {
//#for i in 2
        sum{{i}} += pieces[{{i}}u * PIECES + j];
//#endfor
      }
    }
//#endif
    if (writes) {
      finish(group, at, vec2<f32>(sum0, sum1));
    }
  }
}

// Rows past the end are computed, and not written. Of W there is room for them (model/weights.py), so the first ones are
// asked for while the parameters are still on their way; an expert's are another's, and an adapter's b has none.
fn clamped(n: u32) -> u32 {
  var row = n;
//#if EXPERTS
  row = min(row, params.n - 1u);
//#endif
//#if LOW
  row = min(row, params.n - 1u);
//#endif
  return row;
}

// Blocks past the end of a row meet zeros.
fn held(block: u32) -> u32 {
  return min(block, row_blocks() - 1u);
}

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
