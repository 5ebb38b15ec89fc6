// y[r, n] = Σ_k W[n, k] · x[r, k], for many rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// A workgroup of {{THREADS}} makes a tile of {{ROWS}} rows × 64 columns of y, 8 × 8 per thread (FLAT: 4 × 8), 32 of k at a
// time; while it multiplies, what it needs next is on its way to its registers.
//
//   x [R, K] f32; y [R, y_stride] f32, written from y_offset on
//   SOFTCAP  cap · tanh(y / cap)
//   SCALE    y · side[n]
//   CLIPPED  clamp(Σ_k W[n, k] · clamp(x[r, k]) + bias[n]); bias [·] from `first` on, only with BIAS. K may end within
//            its last block of 32: the weights there are zeros
//   HALF     the tiles are f16, and so are sums of 32 products: x and 32 products together stay below 65504
//
// Grid: (N / 64, R / ROWS), both rounded up. ROWS is 32 (FLAT, 64 threads), 64, or 128 where workgroup memory has room.

struct Params {
  blocks: u32,   // K / 32, rounded up
  n: u32,
  rows: u32,
  y_stride: u32,
  y_offset: u32,
//#if CLIPPED
  x_quads: u32,  // K / 4
  first: u32,    // the row of W this part begins with
  x_min: f32,
  x_max: f32,
  y_min: f32,
  y_max: f32,
//#else
  cap: f32,
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#include block
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
//#endif
//#if SCALE
@group(0) @binding(5) var<storage, read> side: array<f32>;
//#endif
//#if SOFTCAP
//#include softcap
//#endif

//#include tile_sums

const STEP = {{THREADS}}u / 8u;  // between the rows of one thread

// Vector i of row r lies at 8r + (i xor r % 8), so that neighbouring rows meet different memory banks.
var<workgroup> x_tile: array<Quad, {{ROWS}} * 8>;
var<workgroup> w_tile: array<Quad, 512>;

fn place(row: u32, i: u32) -> u32 {
  return row * 8u + (i ^ (row & 7u));
}

fn put_w(row: u32, raw: Raw) {
  let w = decode(raw);
  w_tile[place(row, 0u)] = Quad(w.a);
  w_tile[place(row, 1u)] = Quad(w.b);
  w_tile[place(row, 2u)] = Quad(w.c);
  w_tile[place(row, 3u)] = Quad(w.d);
  w_tile[place(row, 4u)] = Quad(w.e);
  w_tile[place(row, 5u)] = Quad(w.f);
  w_tile[place(row, 6u)] = Quad(w.g);
  w_tile[place(row, 7u)] = Quad(w.h);
}

// Rows past the end are computed as the last one, and not written.
//#if CLIPPED
fn get_x(r: u32, quad: u32) -> vec4<f32> {
  if (quad >= params.x_quads) { return vec4<f32>(); }
  return x[min(r, params.rows - 1u) * params.x_quads + quad];
}

fn put_x(at: u32, part: vec4<f32>) {
  x_tile[at] = Quad(min(max(part, vec4<f32>(params.x_min)), vec4<f32>(params.x_max)));
}
//#else
fn get_x(r: u32, quad: u32) -> vec4<f32> {
  return x[min(r, params.rows - 1u) * params.blocks * 8u + quad];
}

fn put_x(at: u32, part: vec4<f32>) {
  x_tile[at] = Quad(part);
}
//#endif

// Four columns of W, 8 apart, as four vectors over the columns.
fn columns_of_w(at: u32) -> Square {
  return transpose(Square(w_tile[at], w_tile[at + 64u], w_tile[at + 128u], w_tile[at + 192u]));
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let column = thread % 8u;  // columns column, column + 8, … of the tile
  let row = thread / 8u;     // rows row, row + STEP, … of the tile
  let r = group.y * {{ROWS}}u + row;
  let n = group.x * 64u + column;
  // What the thread fetches: a row of W, and vector `column` of every block of its rows of x.
  let own_w = min(group.x * 64u + thread, params.n - 1u);
  let own_x = place(row, column);
  var raw: Raw;
  if (thread < 64u) { raw = fetch(own_w, 0u); }
  var x0 = get_x(r, column);
  var x1 = get_x(r + STEP, column);
  var x2 = get_x(r + 2u * STEP, column);
  var x3 = get_x(r + 3u * STEP, column);
//#if !FLAT
  var x4 = get_x(r + 4u * STEP, column);
  var x5 = get_x(r + 5u * STEP, column);
  var x6 = get_x(r + 6u * STEP, column);
  var x7 = get_x(r + 7u * STEP, column);
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
  for (var block = 0u; block < params.blocks; block++) {
    workgroupBarrier();
    if (thread < 64u) { put_w(thread, raw); }
    put_x(own_x, x0);
    put_x(own_x + 8u * STEP, x1);
    put_x(own_x + 16u * STEP, x2);
    put_x(own_x + 24u * STEP, x3);
//#if !FLAT
    put_x(own_x + 32u * STEP, x4);
    put_x(own_x + 40u * STEP, x5);
    put_x(own_x + 48u * STEP, x6);
    put_x(own_x + 56u * STEP, x7);
//#endif
    workgroupBarrier();
    let next = block + 1u;
    if (next < params.blocks) {
      if (thread < 64u) { raw = fetch(own_w, next); }
      x0 = get_x(r, next * 8u + column);
      x1 = get_x(r + STEP, next * 8u + column);
      x2 = get_x(r + 2u * STEP, next * 8u + column);
      x3 = get_x(r + 3u * STEP, next * 8u + column);
//#if !FLAT
      x4 = get_x(r + 4u * STEP, next * 8u + column);
      x5 = get_x(r + 5u * STEP, next * 8u + column);
      x6 = get_x(r + 6u * STEP, next * 8u + column);
      x7 = get_x(r + 7u * STEP, next * 8u + column);
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
    for (var i = 0u; i < 8u; i++) {
      let w_at = column * 8u + (i ^ column);
      let near = columns_of_w(w_at);
      let far = columns_of_w(w_at + 256u);
      let x_at = row * 8u + (i ^ (row & 7u));
      s0 = more(s0, near, far, x_tile[x_at]);
      s1 = more(s1, near, far, x_tile[x_at + 8u * STEP]);
      s2 = more(s2, near, far, x_tile[x_at + 16u * STEP]);
      s3 = more(s3, near, far, x_tile[x_at + 24u * STEP]);
//#if !FLAT
      s4 = more(s4, near, far, x_tile[x_at + 32u * STEP]);
      s5 = more(s5, near, far, x_tile[x_at + 40u * STEP]);
      s6 = more(s6, near, far, x_tile[x_at + 48u * STEP]);
      s7 = more(s7, near, far, x_tile[x_at + 56u * STEP]);
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
//#if HALF
  store(r, n, t0.near, t0.far);
  store(r + STEP, n, t1.near, t1.far);
  store(r + 2u * STEP, n, t2.near, t2.far);
  store(r + 3u * STEP, n, t3.near, t3.far);
//#if !FLAT
  store(r + 4u * STEP, n, t4.near, t4.far);
  store(r + 5u * STEP, n, t5.near, t5.far);
  store(r + 6u * STEP, n, t6.near, t6.far);
  store(r + 7u * STEP, n, t7.near, t7.far);
//#endif
//#else
  store(r, n, s0.near, s0.far);
  store(r + STEP, n, s1.near, s1.far);
  store(r + 2u * STEP, n, s2.near, s2.far);
  store(r + 3u * STEP, n, s3.near, s3.far);
//#if !FLAT
  store(r + 4u * STEP, n, s4.near, s4.far);
  store(r + 5u * STEP, n, s5.near, s5.far);
  store(r + 6u * STEP, n, s6.near, s6.far);
  store(r + 7u * STEP, n, s7.near, s7.far);
//#endif
//#endif
}

fn store(r: u32, n: u32, near: vec4<f32>, far: vec4<f32>) {
  if (r >= params.rows) { return; }
  for (var i = 0u; i < 4u; i++) {
    store_one(r, n + 8u * i, near[i]);
    store_one(r, n + 8u * i + 32u, far[i]);
  }
}

fn store_one(r: u32, n: u32, sum: f32) {
  if (n >= params.n) { return; }
  var result = sum;
//#if BIAS
  result += bias[params.first + n];
//#endif
//#if CLIPPED
  result = min(max(result, params.y_min), params.y_max);
//#endif
//#if SOFTCAP
  result = softcap(result, params.cap);
//#endif
//#if SCALE
  result *= side[n];
//#endif
  y[r * params.y_stride + params.y_offset + n] = result;
}
