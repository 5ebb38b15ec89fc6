// dx[r, k] = Σ_n dy[r, offset + n] · W[n, k], for many rows r: the way back through tile.wgsl. W in planes
// (block_{{TYPE}}.wgsl), everything else f32.
//
// A workgroup of 64 makes a tile of 32 rows × 64 columns (two blocks) of dx, 4 × 8 per thread, 32 of n at a time: one row
// of one block of W for every thread. While it multiplies, what it needs next is on its way to its registers.
//
//   dy [R, stride] f32, read from offset on; dx [R, K] f32, to which the product is added where `add` is not 0
//
// Grid: (K / 64, R / 32), both rounded up.

struct Params {
  blocks: u32,  // K / 32
  n: u32,       // rows of W
  rows: u32,
  stride: u32,
  offset: u32,
  add: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include block
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<vec4<f32>>;

// dy_tile: vector q of n is rows 4q … 4q + 3; n takes nine vectors, not eight. w_tile: vector i of block b of n lies at
// 16n + 8b + (i xor (2n + b) % 8). Both so that neighbouring threads meet different memory banks.
var<workgroup> dy_tile: array<vec4<f32>, 288>;
var<workgroup> w_tile: array<vec4<f32>, 512>;

fn put_w(thread: u32, raw: Raw) {
  let w = decode(raw);
  let at = thread * 8u;
  let turn = thread & 7u;
  w_tile[at + turn] = w.a;
  w_tile[at + (1u ^ turn)] = w.b;
  w_tile[at + (2u ^ turn)] = w.c;
  w_tile[at + (3u ^ turn)] = w.d;
  w_tile[at + (4u ^ turn)] = w.e;
  w_tile[at + (5u ^ turn)] = w.f;
  w_tile[at + (6u ^ turn)] = w.g;
  w_tile[at + (7u ^ turn)] = w.h;
}

fn get_one(r: u32, n: u32) -> f32 {
  if (r < params.rows && n < params.n) { return dy[r * params.stride + params.offset + n]; }
  return 0.0;
}

fn get_dy(r: u32, n: u32) -> vec4<f32> {
  return vec4<f32>(get_one(r, n), get_one(r + 1u, n), get_one(r + 2u, n), get_one(r + 3u, n));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let block = group.x * 2u + thread % 2u;  // what the thread fetches: row thread / 2 of W, and
  let each = thread % 32u;                 // of column `each` of dy the rows from `high` on, of every eight
  let high = group.y * 32u + thread / 32u * 4u;
  let column = thread % 8u;                // what it makes: vectors `column` and `column` + 8
  let row = thread / 8u;                   // of rows 4 `row` … 4 `row` + 3
  let known = block < params.blocks;
  var raw: Raw;
  if (known && thread / 2u < params.n) { raw = fetch(thread / 2u, block); }
  var y0 = get_dy(high, each);
  var y1 = get_dy(high + 8u, each);
  var y2 = get_dy(high + 16u, each);
  var y3 = get_dy(high + 24u, each);
  // Row i of the thread: the first block's columns in a…, the second's in b….
  var a0 = vec4<f32>();
  var a1 = vec4<f32>();
  var a2 = vec4<f32>();
  var a3 = vec4<f32>();
  var b0 = vec4<f32>();
  var b1 = vec4<f32>();
  var b2 = vec4<f32>();
  var b3 = vec4<f32>();
  for (var first = 0u; first < params.n; first += 32u) {
    workgroupBarrier();
    put_w(thread, raw);
    let at = each * 9u + thread / 32u;
    dy_tile[at] = y0;
    dy_tile[at + 2u] = y1;
    dy_tile[at + 4u] = y2;
    dy_tile[at + 6u] = y3;
    workgroupBarrier();
    // Past the last row of W the one before stays, and is multiplied by zeros.
    let next = first + 32u;
    if (next < params.n) {
      if (known && next + thread / 2u < params.n) { raw = fetch(next + thread / 2u, block); }
      y0 = get_dy(high, next + each);
      y1 = get_dy(high + 8u, next + each);
      y2 = get_dy(high + 16u, next + each);
      y3 = get_dy(high + 24u, next + each);
    }
    for (var n = 0u; n < 32u; n++) {
      let turn = (2u * n) & 7u;
      let w = w_tile[n * 16u + (column ^ turn)];
      let v = w_tile[n * 16u + 8u + (column ^ (turn + 1u))];
      let y = dy_tile[n * 9u + row];
      a0 += y.x * w;
      b0 += y.x * v;
      a1 += y.y * w;
      b1 += y.y * v;
      a2 += y.z * w;
      b2 += y.z * v;
      a3 += y.w * w;
      b3 += y.w * v;
    }
  }
  let r = group.y * 32u + 4u * row;
  let quad = group.x * 16u + column;
  store(r, quad, a0, b0);
  store(r + 1u, quad, a1, b1);
  store(r + 2u, quad, a2, b2);
  store(r + 3u, quad, a3, b3);
}

fn store(r: u32, quad: u32, a: vec4<f32>, b: vec4<f32>) {
  if (r >= params.rows) { return; }
  store_one(r, quad, a);
  store_one(r, quad + 8u, b);
}

fn store_one(r: u32, quad: u32, sum: vec4<f32>) {
  let quads = params.blocks * 8u;
  if (quad >= quads) { return; }
  let at = r * quads + quad;
  if (params.add != 0u) { dx[at] += sum; } else { dx[at] = sum; }
}
