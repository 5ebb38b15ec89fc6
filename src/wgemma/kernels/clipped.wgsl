// y[r, n] = clamp(Σ_k W[n, k] · clamp(x[r, k]) + bias[n]), for many rows r; W in planes (block_{{TYPE}}.wgsl), all else f32.
//
// A workgroup of {{ROWS}} makes a tile of {{ROWS}} rows × 64 columns of y, 8 × 8 per thread, 32 of k at a time; while it
// multiplies, what it needs next is on its way to its registers.
//
//   x [R, x_quads] vec4<f32>   K may end within the last block of 32: the weights there are zeros
//   y [R, y_stride] f32        written from y_offset on
//   bias [·] f32               from `first` on, only with BIAS
//
// Grid: (N / 64, R / ROWS), both rounded up. ROWS is 64, or 128 where workgroup memory has room.

struct Params {
  blocks: u32,   // K / 32, rounded up
  n: u32,
  rows: u32,
  y_stride: u32,
  y_offset: u32,
  x_quads: u32,  // K / 4
  first: u32,    // the row of W this part begins with
  x_min: f32,
  x_max: f32,
  y_min: f32,
  y_max: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include block
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
//#endif

const ROWS = {{ROWS}}u;
const STEP = ROWS / 8u;  // between the rows of one thread

// Vector i of row r lies at 8r + (i xor r % 8), so that neighbouring rows meet different memory banks.
var<workgroup> x_tile: array<vec4<f32>, {{ROWS}} * 8>;
var<workgroup> w_tile: array<vec4<f32>, 512>;

fn place(row: u32, i: u32) -> u32 {
  return row * 8u + (i ^ (row & 7u));
}

fn put_w(row: u32, raw: Raw) {
  let w = decode(raw);
  w_tile[place(row, 0u)] = w.a;
  w_tile[place(row, 1u)] = w.b;
  w_tile[place(row, 2u)] = w.c;
  w_tile[place(row, 3u)] = w.d;
  w_tile[place(row, 4u)] = w.e;
  w_tile[place(row, 5u)] = w.f;
  w_tile[place(row, 6u)] = w.g;
  w_tile[place(row, 7u)] = w.h;
}

fn get_x(i: u32, first: u32, block: u32) -> vec4<f32> {
  let r = first + i / 8u;
  let quad = block * 8u + i % 8u;
  if (r < params.rows && quad < params.x_quads) { return x[r * params.x_quads + quad]; }
  return vec4<f32>();
}

fn put_x(i: u32, part: vec4<f32>) {
  x_tile[place(i / 8u, i % 8u)] = min(max(part, vec4<f32>(params.x_min)), vec4<f32>(params.x_max));
}

// Four columns of W, 8 apart, as four vectors over the columns.
fn columns_of_w(at: u32) -> mat4x4<f32> {
  return transpose(mat4x4<f32>(w_tile[at], w_tile[at + 64u], w_tile[at + 128u], w_tile[at + 192u]));
}

fn grown(s: vec4<f32>, w: mat4x4<f32>, part: vec4<f32>) -> vec4<f32> {
  return s + w[0] * part.x + w[1] * part.y + w[2] * part.z + w[3] * part.w;
}

@compute @workgroup_size({{ROWS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first_n = group.x * 64u;
  let first_r = group.y * ROWS;
  let column = thread % 8u;  // columns column, column + 8, … of the tile
  let row = thread / 8u;     // rows row, row + STEP, … of the tile
  let owns_w = thread < 64u && first_n + thread < params.n;
  var raw: Raw;
  if (owns_w) { raw = fetch(first_n + thread, 0u); }
  var x0 = get_x(thread, first_r, 0u);
  var x1 = get_x(thread + ROWS, first_r, 0u);
  var x2 = get_x(thread + 2u * ROWS, first_r, 0u);
  var x3 = get_x(thread + 3u * ROWS, first_r, 0u);
  var x4 = get_x(thread + 4u * ROWS, first_r, 0u);
  var x5 = get_x(thread + 5u * ROWS, first_r, 0u);
  var x6 = get_x(thread + 6u * ROWS, first_r, 0u);
  var x7 = get_x(thread + 7u * ROWS, first_r, 0u);
  // Row i of the thread: columns below 32 in a…, from 32 on in b….
  var a0 = vec4<f32>();
  var a1 = vec4<f32>();
  var a2 = vec4<f32>();
  var a3 = vec4<f32>();
  var a4 = vec4<f32>();
  var a5 = vec4<f32>();
  var a6 = vec4<f32>();
  var a7 = vec4<f32>();
  var b0 = vec4<f32>();
  var b1 = vec4<f32>();
  var b2 = vec4<f32>();
  var b3 = vec4<f32>();
  var b4 = vec4<f32>();
  var b5 = vec4<f32>();
  var b6 = vec4<f32>();
  var b7 = vec4<f32>();
  for (var block = 0u; block < params.blocks; block++) {
    workgroupBarrier();
    if (owns_w) { put_w(thread, raw); }
    put_x(thread, x0);
    put_x(thread + ROWS, x1);
    put_x(thread + 2u * ROWS, x2);
    put_x(thread + 3u * ROWS, x3);
    put_x(thread + 4u * ROWS, x4);
    put_x(thread + 5u * ROWS, x5);
    put_x(thread + 6u * ROWS, x6);
    put_x(thread + 7u * ROWS, x7);
    workgroupBarrier();
    let next = block + 1u;
    if (next < params.blocks) {
      if (owns_w) { raw = fetch(first_n + thread, next); }
      x0 = get_x(thread, first_r, next);
      x1 = get_x(thread + ROWS, first_r, next);
      x2 = get_x(thread + 2u * ROWS, first_r, next);
      x3 = get_x(thread + 3u * ROWS, first_r, next);
      x4 = get_x(thread + 4u * ROWS, first_r, next);
      x5 = get_x(thread + 5u * ROWS, first_r, next);
      x6 = get_x(thread + 6u * ROWS, first_r, next);
      x7 = get_x(thread + 7u * ROWS, first_r, next);
    }
    for (var i = 0u; i < 8u; i++) {
      let w_at = column * 8u + (i ^ column);
      let near = columns_of_w(w_at);
      let far = columns_of_w(w_at + 256u);
      let x_at = row * 8u + (i ^ (row & 7u));
      let p0 = x_tile[x_at];
      a0 = grown(a0, near, p0);
      b0 = grown(b0, far, p0);
      let p1 = x_tile[x_at + 8u * STEP];
      a1 = grown(a1, near, p1);
      b1 = grown(b1, far, p1);
      let p2 = x_tile[x_at + 16u * STEP];
      a2 = grown(a2, near, p2);
      b2 = grown(b2, far, p2);
      let p3 = x_tile[x_at + 24u * STEP];
      a3 = grown(a3, near, p3);
      b3 = grown(b3, far, p3);
      let p4 = x_tile[x_at + 32u * STEP];
      a4 = grown(a4, near, p4);
      b4 = grown(b4, far, p4);
      let p5 = x_tile[x_at + 40u * STEP];
      a5 = grown(a5, near, p5);
      b5 = grown(b5, far, p5);
      let p6 = x_tile[x_at + 48u * STEP];
      a6 = grown(a6, near, p6);
      b6 = grown(b6, far, p6);
      let p7 = x_tile[x_at + 56u * STEP];
      a7 = grown(a7, near, p7);
      b7 = grown(b7, far, p7);
    }
  }
  let r = first_r + row;
  let n = first_n + column;
  store(r, n, a0, b0);
  store(r + STEP, n, a1, b1);
  store(r + 2u * STEP, n, a2, b2);
  store(r + 3u * STEP, n, a3, b3);
  store(r + 4u * STEP, n, a4, b4);
  store(r + 5u * STEP, n, a5, b5);
  store(r + 6u * STEP, n, a6, b6);
  store(r + 7u * STEP, n, a7, b7);
}

fn store(r: u32, n: u32, a: vec4<f32>, b: vec4<f32>) {
  if (r >= params.rows) { return; }
  for (var i = 0u; i < 4u; i++) {
    store_one(r, n + 8u * i, a[i]);
    store_one(r, n + 8u * i + 32u, b[i]);
  }
}

fn store_one(r: u32, n: u32, sum: f32) {
  if (n >= params.n) { return; }
  var result = sum;
//#if BIAS
  result += bias[params.first + n];
//#endif
  y[r * params.y_stride + params.y_offset + n] = min(max(result, params.y_min), params.y_max);
}
