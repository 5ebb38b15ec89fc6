// dx[r, k] = Σ_n dy[r, offset + n] · W[n, k], for many rows r: the way back through tile.wgsl. W in planes
// (block_{{TYPE}}.wgsl), everything else f32.
//
// A workgroup of {{THREADS}} makes a tile of {{ROWS}} rows × 64 columns (two blocks) of dx, {{EACH}} × 8 per
// thread, 32 of n at a time; while it multiplies, what it needs next is on its way to its registers.
//
//   dy [R, stride] f32, read from offset on; dx [R, K] f32, to which the product is added where `add` is not 0
//
// Grid: (K / 64, R / ROWS), both rounded up. ROWS is 32 (64 threads, EACH 4, one band), 64, or 128 where
// workgroup memory has room.

struct Params {
  blocks: u32,  // K / 32
  n: u32,       // rows of W
  rows: u32,
  stride: u32,
  offset: u32,
  add: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<vec4<f32>>;

//#include tile_sums

const QUADS = {{ROWS}}u / 4u;     // vectors of dy for one n
const STEP = {{THREADS}}u / 8u;   // between the two vectors of dy that a thread multiplies with
const TURN = {{THREADS}}u / 32u;  // between those it fetches

// Vector q of n, rows 4q … 4q + 3 of dy, lies at QUADS · n + (q xor n % 8); vector i of block b of row n of W at
// 16n + 8b + (i xor (2n + b) % 8). Both so that neighbouring threads meet different memory banks.
var<workgroup> dy_tile: array<vec4<f32>, {{ROWS}} * 8>;
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
  dy_tile[n * QUADS + (q ^ (n & 7u))] = part;
}

// Row n of W and the three after it, each a vector of columns.
fn near_w(n: u32, column: u32) -> mat4x4<f32> {
  let at = n * 16u;
  return mat4x4<f32>(
    w_tile[at + column], w_tile[at + 16u + (column ^ 2u)],
    w_tile[at + 32u + (column ^ 4u)], w_tile[at + 48u + (column ^ 6u)],
  );
}

fn far_w(n: u32, column: u32) -> mat4x4<f32> {
  let at = n * 16u + 8u;
  return mat4x4<f32>(
    w_tile[at + (column ^ 1u)], w_tile[at + 16u + (column ^ 3u)],
    w_tile[at + 32u + (column ^ 5u)], w_tile[at + 48u + (column ^ 7u)],
  );
}

// Vector q of dy at n and the three after it, as four rows.
fn rows_of_dy(n: u32, q: u32) -> mat4x4<f32> {
  let at = n * QUADS;
  let place = q ^ (n & 7u);
  return transpose(mat4x4<f32>(
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
//#for j in EACH
  var y{{j}} = get_dy(high + {{j}}u * TURN, each);
//#endfor
//#for band in BANDS
//#for j in 4
  var s{{band}}{{j}} = Sums();
//#endfor
//#endfor
  for (var first = 0u; first < params.n; first += 32u) {
    workgroupBarrier();
    if (thread < 64u) { put_w(thread, raw); }
//#for j in EACH
    put_dy(each, q + {{j}}u * TURN, y{{j}});
//#endfor
    workgroupBarrier();
    let next = first + 32u;
    if (next < params.n) {
      if (thread < 64u) { raw = fetch(min(next + own_w, last), block); }
//#for j in EACH
      y{{j}} = get_dy(high + {{j}}u * TURN, next + each);
//#endfor
    }
    for (var n = 0u; n < 32u; n += 4u) {
      let near = near_w(n, column);
      let far = far_w(n, column);
//#for band in BANDS
      let rows{{band}} = rows_of_dy(n, row + {{band}}u * STEP);
//#for j in 4
      s{{band}}{{j}} = more(s{{band}}{{j}}, near, far, rows{{band}}[{{j}}]);
//#endfor
//#endfor
    }
  }
  let quad = group.x * 16u + column;
//#for band in BANDS
  let r{{band}} = group.y * {{ROWS}}u + 4u * (row + {{band}}u * STEP);
//#for j in 4
  store(r{{band}} + {{j}}u, quad, s{{band}}{{j}});
//#endfor
//#endfor
}

fn store(r: u32, quad: u32, sums: Sums) {
  if (r >= params.rows) { return; }
  store_one(r, quad, sums.near);
  store_one(r, quad + 8u, sums.far);
}

fn store_one(r: u32, quad: u32, sum: vec4<f32>) {
  let quads = params.blocks * 8u;
  if (quad >= quads) { return; }
  let at = r * quads + quad;
  if (params.add != 0u) { dx[at] += sum; } else { dx[at] = sum; }
}
