// y[r, n] = Σ_k W[n, k] · x[r, k], for many rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// A workgroup of 128 makes a tile of 32 rows × 64 columns of y, 4 × 4 per thread, 32 of k at a time.
//
//   x [R, K] f32; y [R, y_stride] f32, written from y_offset on; rows beyond R exist in both buffers' last tile only
//   SOFTCAP: cap · tanh(y / cap)
//
// Grid: (N / 64, R / 32), both rounded up.

struct Params {
  blocks: u32,  // K / 32
  n: u32,
  rows: u32,
  y_stride: u32,
  y_offset: u32,
  cap: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include block
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#if SOFTCAP
//#include softcap
//#endif

// A row of 32 takes nine vectors, not eight, so that neighbouring rows meet different memory banks.
var<workgroup> x_tile: array<vec4<f32>, 288>;
var<workgroup> w_tile: array<vec4<f32>, 576>;

fn load_w(row: u32, n: u32, block: u32) {
  if (n >= params.n) { return; }
  let w = load32(n, block);
  let at = row * 9u;
  w_tile[at] = w.a;
  w_tile[at + 1u] = w.b;
  w_tile[at + 2u] = w.c;
  w_tile[at + 3u] = w.d;
  w_tile[at + 4u] = w.e;
  w_tile[at + 5u] = w.f;
  w_tile[at + 6u] = w.g;
  w_tile[at + 7u] = w.h;
}

fn load_x(thread: u32, first: u32, block: u32) {
  for (var i = thread; i < 256u; i += 64u) {
    let r = first + i / 8u;
    if (r < params.rows) { x_tile[i + i / 8u] = x[(r * params.blocks + block) * 8u + i % 8u]; }
  }
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first_n = group.x * 64u;
  let first_r = group.y * 32u;
  let column = thread % 16u;  // columns column, column + 16, … of the tile
  let row = thread / 16u;     // rows row, row + 8, … of the tile
  var s0 = vec4<f32>();
  var s1 = vec4<f32>();
  var s2 = vec4<f32>();
  var s3 = vec4<f32>();
  for (var block = 0u; block < params.blocks; block++) {
    workgroupBarrier();
    if (thread < 64u) { load_w(thread, first_n + thread, block); } else { load_x(thread - 64u, first_r, block); }
    workgroupBarrier();
    for (var i = 0u; i < 8u; i++) {
      let w0 = w_tile[column * 9u + i];
      let w1 = w_tile[(column + 16u) * 9u + i];
      let w2 = w_tile[(column + 32u) * 9u + i];
      let w3 = w_tile[(column + 48u) * 9u + i];
      let x0 = x_tile[row * 9u + i];
      let x1 = x_tile[(row + 8u) * 9u + i];
      let x2 = x_tile[(row + 16u) * 9u + i];
      let x3 = x_tile[(row + 24u) * 9u + i];
      s0 += vec4<f32>(dot(x0, w0), dot(x0, w1), dot(x0, w2), dot(x0, w3));
      s1 += vec4<f32>(dot(x1, w0), dot(x1, w1), dot(x1, w2), dot(x1, w3));
      s2 += vec4<f32>(dot(x2, w0), dot(x2, w1), dot(x2, w2), dot(x2, w3));
      s3 += vec4<f32>(dot(x3, w0), dot(x3, w1), dot(x3, w2), dot(x3, w3));
    }
  }
  store(first_r + row, first_n + column, s0);
  store(first_r + row + 8u, first_n + column, s1);
  store(first_r + row + 16u, first_n + column, s2);
  store(first_r + row + 24u, first_n + column, s3);
}

fn store(r: u32, n: u32, s: vec4<f32>) {
  if (r >= params.rows) { return; }
  for (var i = 0u; i < 4u; i++) {
    if (n + 16u * i >= params.n) { return; }
    var result = s[i];
//#if SOFTCAP
    result = softcap(result, params.cap);
//#endif
    y[r * params.y_stride + params.y_offset + n + 16u * i] = result;
  }
}
