// dx[r, k] = Σ_n dy[r, offset + n] · W[n, k], for many rows r: the way back through tile.wgsl. W in planes
// (block_{{TYPE}}.wgsl), everything else f32.
//
// A workgroup of {{THREADS}} makes a tile of {{ROWS}} rows × 64 columns (two blocks) of dx, 8 × 8 per thread (FLAT: 4 × 8),
// 32 of n at a time; while it multiplies, what it needs next is on its way to its registers.
//
//   dy [R, stride] f32, read from offset on; dx [R, K] f32, to which the product is added where `add` is not 0
//   HALF  the tiles are f16, and so are sums of 32 products; dy, which may be tiny, is multiplied by `lift` before, a
//         power of two that is taken out again in the end
//
// Grid: (K / 64, R / ROWS), both rounded up. ROWS is 32 (FLAT, 64 threads), 64, or 128 where workgroup memory has room.

struct Params {
  blocks: u32,  // K / 32
  n: u32,       // rows of W
  rows: u32,
  stride: u32,
  offset: u32,
  add: u32,
//#if HALF
  lift: f32,
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#include block
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<vec4<f32>>;

//#include tile_sums

const QUADS = {{ROWS}}u / 4u;     // vectors of dy for one n
const STEP = {{THREADS}}u / 8u;   // between the two vectors of dy that a thread multiplies with
const TURN = {{THREADS}}u / 32u;  // between those it fetches

// Vector q of n, rows 4q … 4q + 3 of dy, lies at QUADS · n + (q xor n % 8); vector i of block b of row n of W at
// 16n + 8b + (i xor (2n + b) % 8). Both so that neighbouring threads meet different memory banks.
var<workgroup> dy_tile: array<Quad, {{ROWS}} * 8>;
var<workgroup> w_tile: array<Quad, 512>;

fn put_w(thread: u32, raw: Raw) {
  let w = decode(raw);
  let at = thread * 8u;
  let turn = thread & 7u;
  w_tile[at + turn] = Quad(w.a);
  w_tile[at + (1u ^ turn)] = Quad(w.b);
  w_tile[at + (2u ^ turn)] = Quad(w.c);
  w_tile[at + (3u ^ turn)] = Quad(w.d);
  w_tile[at + (4u ^ turn)] = Quad(w.e);
  w_tile[at + (5u ^ turn)] = Quad(w.f);
  w_tile[at + (6u ^ turn)] = Quad(w.g);
  w_tile[at + (7u ^ turn)] = Quad(w.h);
}

// Rows past the end are computed as the last one, and not written.
fn get_one(r: u32, n: u32) -> f32 {
  return dy[min(r, params.rows - 1u) * params.stride + params.offset + n];
}

// Vector q of n; past the last row of W it is zeros.
fn get_dy(q: u32, n: u32) -> vec4<f32> {
  if (n >= params.n) { return vec4<f32>(); }
  let r = 4u * q;
  return vec4<f32>(get_one(r, n), get_one(r + 1u, n), get_one(r + 2u, n), get_one(r + 3u, n));
}

fn put_dy(n: u32, q: u32, part: vec4<f32>) {
//#if HALF
  dy_tile[n * QUADS + (q ^ (n & 7u))] = Quad(params.lift * part);
//#else
  dy_tile[n * QUADS + (q ^ (n & 7u))] = part;
//#endif
}

// Row n of W and the three after it, each a vector of columns.
fn near_w(n: u32, column: u32) -> Square {
  let at = n * 16u;
  return Square(
    w_tile[at + column], w_tile[at + 16u + (column ^ 2u)],
    w_tile[at + 32u + (column ^ 4u)], w_tile[at + 48u + (column ^ 6u)],
  );
}

fn far_w(n: u32, column: u32) -> Square {
  let at = n * 16u + 8u;
  return Square(
    w_tile[at + (column ^ 1u)], w_tile[at + 16u + (column ^ 3u)],
    w_tile[at + 32u + (column ^ 5u)], w_tile[at + 48u + (column ^ 7u)],
  );
}

// Vector q of dy at n and the three after it, as four rows.
fn rows_of_dy(n: u32, q: u32) -> Square {
  let at = n * QUADS;
  let place = q ^ (n & 7u);
  return transpose(Square(
    dy_tile[at + place], dy_tile[at + QUADS + (place ^ 1u)],
    dy_tile[at + 2u * QUADS + (place ^ 2u)], dy_tile[at + 3u * QUADS + (place ^ 3u)],
  ));
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  // What the thread fetches: one block of row own_w of W, or none; vectors q, q + TURN, … of dy's column `each`.
  let block = min(group.x * 2u + thread % 2u, params.blocks - 1u);
  let own_w = thread / 2u;
  let each = thread % 32u;
  let q = thread / 32u;
  let high = group.y * QUADS + q;
  // What it makes: vectors `column` and `column` + 8 of dx, of the rows in vectors `row` and `row` + STEP of dy.
  let column = thread % 8u;
  let row = thread / 8u;
  let last = params.n - 1u;
  var raw: Raw;
  if (thread < 64u) { raw = fetch(min(own_w, last), block); }
  var y0 = get_dy(high, each);
  var y1 = get_dy(high + TURN, each);
  var y2 = get_dy(high + 2u * TURN, each);
  var y3 = get_dy(high + 3u * TURN, each);
//#if !FLAT
  var y4 = get_dy(high + 4u * TURN, each);
  var y5 = get_dy(high + 5u * TURN, each);
  var y6 = get_dy(high + 6u * TURN, each);
  var y7 = get_dy(high + 7u * TURN, each);
//#endif
//#if HALF
  var t0 = Totals();
  var t1 = Totals();
  var t2 = Totals();
  var t3 = Totals();
//#if !FLAT
  var t4 = Totals();
  var t5 = Totals();
  var t6 = Totals();
  var t7 = Totals();
//#endif
//#else
  var s0 = Sums();
  var s1 = Sums();
  var s2 = Sums();
  var s3 = Sums();
//#if !FLAT
  var s4 = Sums();
  var s5 = Sums();
  var s6 = Sums();
  var s7 = Sums();
//#endif
//#endif
  for (var first = 0u; first < params.n; first += 32u) {
    workgroupBarrier();
    if (thread < 64u) { put_w(thread, raw); }
    put_dy(each, q, y0);
    put_dy(each, q + TURN, y1);
    put_dy(each, q + 2u * TURN, y2);
    put_dy(each, q + 3u * TURN, y3);
//#if !FLAT
    put_dy(each, q + 4u * TURN, y4);
    put_dy(each, q + 5u * TURN, y5);
    put_dy(each, q + 6u * TURN, y6);
    put_dy(each, q + 7u * TURN, y7);
//#endif
    workgroupBarrier();
    let next = first + 32u;
    if (next < params.n) {
      if (thread < 64u) { raw = fetch(min(next + own_w, last), block); }
      y0 = get_dy(high, next + each);
      y1 = get_dy(high + TURN, next + each);
      y2 = get_dy(high + 2u * TURN, next + each);
      y3 = get_dy(high + 3u * TURN, next + each);
//#if !FLAT
      y4 = get_dy(high + 4u * TURN, next + each);
      y5 = get_dy(high + 5u * TURN, next + each);
      y6 = get_dy(high + 6u * TURN, next + each);
      y7 = get_dy(high + 7u * TURN, next + each);
//#endif
    }
//#if HALF
    var s0 = Sums();
    var s1 = Sums();
    var s2 = Sums();
    var s3 = Sums();
//#if !FLAT
    var s4 = Sums();
    var s5 = Sums();
    var s6 = Sums();
    var s7 = Sums();
//#endif
//#endif
    for (var n = 0u; n < 32u; n += 4u) {
      let near = near_w(n, column);
      let far = far_w(n, column);
      let low_rows = rows_of_dy(n, row);
      s0 = more(s0, near, far, low_rows[0]);
      s1 = more(s1, near, far, low_rows[1]);
      s2 = more(s2, near, far, low_rows[2]);
      s3 = more(s3, near, far, low_rows[3]);
//#if !FLAT
      let high_rows = rows_of_dy(n, row + STEP);
      s4 = more(s4, near, far, high_rows[0]);
      s5 = more(s5, near, far, high_rows[1]);
      s6 = more(s6, near, far, high_rows[2]);
      s7 = more(s7, near, far, high_rows[3]);
//#endif
    }
//#if HALF
    t0 = settled(t0, s0);
    t1 = settled(t1, s1);
    t2 = settled(t2, s2);
    t3 = settled(t3, s3);
//#if !FLAT
    t4 = settled(t4, s4);
    t5 = settled(t5, s5);
    t6 = settled(t6, s6);
    t7 = settled(t7, s7);
//#endif
//#endif
  }
  let r = group.y * {{ROWS}}u + 4u * row;
  let quad = group.x * 16u + column;
//#if HALF
  store(r, quad, t0.near, t0.far);
  store(r + 1u, quad, t1.near, t1.far);
  store(r + 2u, quad, t2.near, t2.far);
  store(r + 3u, quad, t3.near, t3.far);
//#if !FLAT
  store(r + 4u * STEP, quad, t4.near, t4.far);
  store(r + 4u * STEP + 1u, quad, t5.near, t5.far);
  store(r + 4u * STEP + 2u, quad, t6.near, t6.far);
  store(r + 4u * STEP + 3u, quad, t7.near, t7.far);
//#endif
//#else
  store(r, quad, s0.near, s0.far);
  store(r + 1u, quad, s1.near, s1.far);
  store(r + 2u, quad, s2.near, s2.far);
  store(r + 3u, quad, s3.near, s3.far);
//#if !FLAT
  store(r + 4u * STEP, quad, s4.near, s4.far);
  store(r + 4u * STEP + 1u, quad, s5.near, s5.far);
  store(r + 4u * STEP + 2u, quad, s6.near, s6.far);
  store(r + 4u * STEP + 3u, quad, s7.near, s7.far);
//#endif
//#endif
}

fn store(r: u32, quad: u32, near: vec4<f32>, far: vec4<f32>) {
  if (r >= params.rows) { return; }
  store_one(r, quad, near);
  store_one(r, quad + 8u, far);
}

fn store_one(r: u32, quad: u32, sum: vec4<f32>) {
  let quads = params.blocks * 8u;
  if (quad >= quads) { return; }
  let at = r * quads + quad;
//#if HALF
  let result = sum / params.lift;
//#else
  let result = sum;
//#endif
  if (params.add != 0u) { dx[at] += result; } else { dx[at] = result; }
}
