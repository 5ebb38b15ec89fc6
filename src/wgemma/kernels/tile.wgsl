// y[r, n] = Σ_k W[n, k] · x[r, k], for many rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// A workgroup of {{THREADS}} makes a tile of {{ROWS}} rows × 64 columns of y, {{EACH}} × 8 per thread, 32 of k at a
// time; while it multiplies, what it needs next is on its way to its registers.
//
//   x [R, K] f32; y [R, y_stride] f32, written from y_offset on
//   SOFTCAP  cap · tanh(y / cap)
//   SCALE    y · side[r, n]; a side_stride of 0 means one side for all rows
//   CLIPPED  clamp(Σ_k W[n, k] · clamp(x[r, k]) + bias[n]); bias [·] from `first` on, only with BIAS. K may end within
//            its last block of 32: the weights there are zeros
//   EXPERTS  rows of y are pairs of a row and an expert with N rows of W of its own; group.y is one of the `tiles` that
//            group.wgsl made of them, with up to ROWS pairs from `order`. x is [R / share, K]: pair p has row p / share.
//   WEIGHTED y · weights[r]
//
// Grid: (N / 64, R / ROWS, shares), rounded up, or with EXPERTS (N / 64, tiles). ROWS is 32 (64 threads, EACH 4) or more.
// Several shares of K, of a plain product, give y [shares, R, y_stride], for add_up.wgsl; each has a block of 32 at least.

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
//#endif
//#if SOFTCAP
  cap: f32,
//#endif
//#if SCALE
  side_stride: u32,
//#endif
//#if EXPERTS
  share: u32,
  first_expert: u32,
  experts: u32,  // in this part
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
//#endif
//#if SCALE
@group(0) @binding(5) var<storage, read> side: array<f32>;
//#endif
//#include tile_experts
//#if SOFTCAP
//#include softcap
//#endif

//#include tile_sums

const STEP = {{THREADS}}u / 8u;  // between the rows of one thread

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

//#if CLIPPED
fn get_x(r: u32, quad: u32) -> vec4<f32> {
  if (quad >= params.x_quads) { return vec4<f32>(); }
  return x[r * params.x_quads + quad];
}

fn put_x(at: u32, part: vec4<f32>) {
  x_tile[at] = min(max(part, vec4<f32>(params.x_min)), vec4<f32>(params.x_max));
}
//#else
fn get_x(r: u32, quad: u32) -> vec4<f32> {
  return x[r * params.blocks * 8u + quad];
}

fn put_x(at: u32, part: vec4<f32>) {
  x_tile[at] = part;
}
//#endif

// Four columns of W, 8 apart, as four vectors over the columns.
fn columns_of_w(at: u32) -> mat4x4<f32> {
  return transpose(mat4x4<f32>(w_tile[at], w_tile[at + 64u], w_tile[at + 128u], w_tile[at + 192u]));
}

@compute @workgroup_size({{THREADS}})
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let column = thread % 8u;  // columns column, column + 8, … of the tile
  let row = thread / 8u;     // rows row, row + STEP, … of the tile
  let n = group.x * 64u + column;
  var first_w = 0u;
  // Rows past the end are computed as the last one, and not written.
//#if EXPERTS
  let tile = tiles[group.y];
  let expert = tile.x - params.first_expert;
  if (tile.z == 0u || expert >= params.experts) { return; }
  first_w = expert * params.n;
//#for j in EACH
  let pair{{j}} = order[tile.y + min(row + {{j}}u * STEP, tile.z - 1u)];
  let from{{j}} = pair{{j}} / params.share;
  let r{{j}} = select(params.rows, pair{{j}}, (row + {{j}}u * STEP) < tile.z);
//#endfor
//#else
//#for j in EACH
  let r{{j}} = group.y * {{ROWS}}u + row + {{j}}u * STEP;
  let from{{j}} = min(r{{j}}, params.rows - 1u);
//#endfor
//#endif
  // What the thread fetches: a row of W, and vector `column` of every block of its rows of x.
  let own_w = first_w + min(group.x * 64u + thread, params.n - 1u);
  let own_x = place(row, column);
  let begin = group.z * params.blocks / groups.z;
  let end = (group.z + 1u) * params.blocks / groups.z;
  var raw: Raw;
  if (thread < 64u) { raw = fetch(own_w, begin); }
//#for j in EACH
  var x{{j}} = get_x(from{{j}}, begin * 8u + column);
  var s{{j}} = Sums();
//#endfor
  for (var block = begin; block < end; block++) {
    workgroupBarrier();
    if (thread < 64u) { put_w(thread, raw); }
//#for j in EACH
    put_x(own_x + {{j}}u * 8u * STEP, x{{j}});
//#endfor
    workgroupBarrier();
    let next = block + 1u;
    if (next < end) {
      if (thread < 64u) { raw = fetch(own_w, next); }
//#for j in EACH
      x{{j}} = get_x(from{{j}}, next * 8u + column);
//#endfor
    }
    for (var i = 0u; i < 8u; i++) {
      let w_at = column * 8u + (i ^ column);
      let near = columns_of_w(w_at);
      let far = columns_of_w(w_at + 256u);
      let x_at = row * 8u + (i ^ (row & 7u));
//#if EXPERTS
      // A tile that is at most half full takes half the time.
      if (tile.z <= 4u * STEP) {
//#for j in 4
        s{{j}} = more(s{{j}}, near, far, x_tile[x_at + {{j}}u * 8u * STEP]);
//#endfor
        continue;
      }
//#endif
//#for j in EACH
      s{{j}} = more(s{{j}}, near, far, x_tile[x_at + {{j}}u * 8u * STEP]);
//#endfor
    }
  }
//#for j in EACH
  store(group.z, r{{j}}, n, s{{j}});
//#endfor
}

fn store(part: u32, r: u32, n: u32, sums: Sums) {
  if (r >= params.rows) { return; }
  for (var i = 0u; i < 4u; i++) {
    store_one(part, r, n + 8u * i, sums.near[i]);
    store_one(part, r, n + 8u * i + 32u, sums.far[i]);
  }
}

fn store_one(part: u32, r: u32, n: u32, sum: f32) {
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
  result *= side[r * params.side_stride + n];
//#endif
//#if WEIGHTED
  result *= weights[r];
//#endif
  y[(part * params.rows + r) * params.y_stride + params.y_offset + n] = result;
}
