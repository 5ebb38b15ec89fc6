// What matvec.wgsl and experts_matvec.wgsl share: x in workgroup memory, in slices of {{SLICE}} blocks, and what a pair of
// rows is multiplied with there.
//
//   put(i, near, far)   elements 8i … 8i + 7 of the slice
//   take(block)         a block of the slice, for `product`
//   finish              hands the sums of rows n and n + 1 to the kernel's own `write`
//
// MADE: the kernel has x in registers and lays a slice out of them; else it asks for it by `get_x`.
// QUICK: x is rounded to eight bits per number, or with FINE to sixteen, with a scale per 32; needs SUBGROUPS.
// WITHIN: so many lanes of a row lie in one subgroup; WIDE: all.

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
