// y[r, n] = Σ_k W[n, k] · x[r, k], for 2 to 64 rows r: each block of W is decoded once for all rows of a tile.
//
// A workgroup of {{THREADS}} makes a tile of {{ROWS}} rows × {{COLUMNS}} columns of y, {{EACH}} × 4 per thread. Its {{CREWS}} crews share K:
// each takes {{DEPTH}} blocks of 32 from every batch in workgroup memory, and their sums are added up at the end. While they
// multiply, the next batch is on its way to their registers.
//
//   W in planes (block_{{TYPE}}.wgsl); y [R, y_stride] f32, written from y_offset on
//   QUICK    x in bytes (to_bytes.wgsl), with FINE two bytes for each number; else x [R, K] f32
//   GEGLU    gelu(y₂ₙ) · y₂ₙ₊₁, rows of W alternating between gate and up; N/2 results
//   ROUNDS   the results of GEGLU go to `bytes` instead of y, in blocks of 32 (to_bytes.wgsl); N, COLUMNS and 2 · y_offset
//            are multiples of 64, y_stride is one of 32, and x is not FINE
//   PLE      gelu(yₙ) · side[r, side_offset + n]
//   SOFTCAP  cap · tanh(yₙ / cap)
//   EXPERTS and WEIGHTED as in tile.wgsl, x being [R / share, K]
//
// Grid: (N / COLUMNS, R / ROWS, shares), rounded up, or with EXPERTS (N / COLUMNS, tiles). Several shares of K, of a plain
// product, give y [shares, R, y_stride], for add_up.wgsl; each has a block of 32 at least.
// THREADS = ROWS / EACH · COLUMNS / 4 · CREWS, and CREWS is a power of two.

struct Params {
  blocks: u32,  // K / 32
  n: u32,
  rows: u32,
  y_stride: u32,
  y_offset: u32,
//#if SOFTCAP
  cap: f32,
//#endif
//#if PLE
  side_stride: u32,
  side_offset: u32,
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
@group(0) @binding(3) var<storage, read> x: array<vec4<u32>>;
//#if ROUNDS
@group(0) @binding(4) var<storage, read_write> bytes: array<vec4<u32>>;
//#include rounded_block
//#else
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#endif
//#if PLE
@group(0) @binding(5) var<storage, read> side: array<f32>;
//#endif
//#include tile_experts
//#include gelu
//#if SOFTCAP
//#include softcap
//#endif

const ACROSS = {{COLUMNS}}u / 4u;          // threads side by side
const STEP = {{ROWS}}u / {{EACH}}u;        // threads one below the other, and so between the rows of one thread
const CREW = ACROSS * STEP;
const BATCH = {{CREWS}}u * {{DEPTH}}u;     // blocks
const X_RUN = BATCH * {{X_PARTS}}u;        // vectors of a row of x in a batch
const W_ITEMS = {{COLUMNS}}u * BATCH;
const X_ITEMS = {{ROWS}}u * X_RUN;
const W_BLOCK = ({{COLUMNS}}u + 1u) * {{W_PARTS}}u;  // from one block of K to the next, so that these meet different banks
const X_FIRST = BATCH * W_BLOCK;

// A batch of W, block by block, then of x, row by row; at the end, sums on their way to another crew.
var<workgroup> room: array<vec4<u32>, {{ROOM}}>;

// Columns 4c … 4c + 3 belong to one thread; those of neighbouring threads lie side by side.
fn w_place(item: u32) -> u32 {
  let column = item / BATCH;
  return item % BATCH * W_BLOCK + ((column % 4u) * ACROSS + column / 4u) * {{W_PARTS}}u;
}

fn put_w(at: u32, raw: Raw) {
//#if QUICK
  let codes = bytes_of(raw);
  room[at] = codes.low;
  room[at + 1u] = codes.high;
  room[at + 2u] = bitcast<vec4<u32>>(as_four(tails_of(raw)));
//#else
  let w = decode(raw);
  room[at] = bitcast<vec4<u32>>(w.a);
  room[at + 1u] = bitcast<vec4<u32>>(w.b);
  room[at + 2u] = bitcast<vec4<u32>>(w.c);
  room[at + 3u] = bitcast<vec4<u32>>(w.d);
  room[at + 4u] = bitcast<vec4<u32>>(w.e);
  room[at + 5u] = bitcast<vec4<u32>>(w.f);
  room[at + 6u] = bitcast<vec4<u32>>(w.g);
  room[at + 7u] = bitcast<vec4<u32>>(w.h);
//#endif
}

//#if QUICK
fn x_of(at: u32) -> Bytes {
  let tails = bitcast<vec4<f32>>(room[at + 2u]);
//#if FINE
  return Bytes(room[at], room[at + 1u], tails.x, tails.yz, room[at + 3u], room[at + 4u]);
//#else
  return Bytes(room[at], room[at + 1u], tails.x, tails.yz);
//#endif
}
//#else
fn vector(at: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(room[at]);
}
//#endif

@compute @workgroup_size({{THREADS}})
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let begin = group.z * params.blocks / groups.z;
  let end = (group.z + 1u) * params.blocks / groups.z;
  let crew = thread / CREW;
  let own = thread % CREW;
  let column = own % ACROSS;  // columns 4 · column … 4 · column + 3 of the tile
  let row = own / ACROSS;     // rows row, row + STEP, … of the tile
  var first_w = 0u;
//#if EXPERTS
  let tile = tiles[group.y];
  let expert = tile.x - params.first_expert;
  if (tile.z == 0u || expert >= params.experts) { return; }
  first_w = expert * params.n;
//#endif
  // What the thread fetches: neighbours take neighbouring blocks of a row. Rows past the end are computed as the last
  // one, and not written.
//#for j in W_EACH
  let item{{j}} = thread + {{j}}u * {{THREADS}}u;
  let w_row{{j}} = first_w + min(group.x * {{COLUMNS}}u + item{{j}} / BATCH, params.n - 1u);
  var raw{{j}}: Raw;
  if (item{{j}} < W_ITEMS) { raw{{j}} = fetch(w_row{{j}}, min(begin + item{{j}} % BATCH, end - 1u)); }
//#endfor
//#for j in X_EACH
  let part{{j}} = (thread + {{j}}u * {{THREADS}}u) % X_RUN;
  let from{{j}} = x_row(group.y, (thread + {{j}}u * {{THREADS}}u) / X_RUN) * params.blocks * {{X_PARTS}}u + part{{j}};
  var x{{j}} = get_x(from{{j}}, part{{j}}, begin, end);
//#endfor
//#for j in EACH
  var sum{{j}} = vec4<f32>();
//#endfor
  for (var start = begin; start < end; start += BATCH) {
    workgroupBarrier();
//#for j in W_EACH
    if (item{{j}} < W_ITEMS) { put_w(w_place(item{{j}}), raw{{j}}); }
//#endfor
//#for j in X_EACH
    if (thread + {{j}}u * {{THREADS}}u < X_ITEMS) { room[X_FIRST + thread + {{j}}u * {{THREADS}}u] = x{{j}}; }
//#endfor
    workgroupBarrier();
    let next = start + BATCH;
    if (next < end) {
//#for j in W_EACH
      if (item{{j}} < W_ITEMS) { raw{{j}} = fetch(w_row{{j}}, min(next + item{{j}} % BATCH, end - 1u)); }
//#endfor
//#for j in X_EACH
      x{{j}} = get_x(from{{j}}, part{{j}}, next, end);
//#endfor
    }
    for (var block = crew; block < BATCH; block += {{CREWS}}u) {
      let w_at = block * W_BLOCK + column * {{W_PARTS}}u;
      let x_at = X_FIRST + row * X_RUN + block * {{X_PARTS}}u;
//#if QUICK
//#for c in 4
      let codes{{c}} = Codes(room[w_at + {{c}}u * ACROSS * {{W_PARTS}}u], room[w_at + {{c}}u * ACROSS * {{W_PARTS}}u + 1u]);
      let tails{{c}} = from_four(bitcast<vec4<f32>>(room[w_at + {{c}}u * ACROSS * {{W_PARTS}}u + 2u]));
//#endfor
//#for j in EACH
//#if EXPERTS
      if ({{j}}u * STEP < tile.z)
//#endif
      {
        let part = x_of(x_at + {{j}}u * STEP * X_RUN);
        sum{{j}} += vec4<f32>(
          weighed(tails0, products(codes0, part), part.scale, part.sums),
          weighed(tails1, products(codes1, part), part.scale, part.sums),
          weighed(tails2, products(codes2, part), part.scale, part.sums),
          weighed(tails3, products(codes3, part), part.scale, part.sums),
        );
      }
//#endfor
//#else
      for (var i = 0u; i < 8u; i++) {
//#for c in 4
        let w{{c}} = vector(w_at + {{c}}u * ACROSS * {{W_PARTS}}u + i);
//#endfor
//#for j in EACH
        let four{{j}} = vector(x_at + {{j}}u * STEP * X_RUN + i);
        sum{{j}} += vec4<f32>(dot(w0, four{{j}}), dot(w1, four{{j}}), dot(w2, four{{j}}), dot(w3, four{{j}}));
//#endfor
      }
//#endif
    }
  }
  // The upper half of the crews hands its sums to the lower half, until one has them all.
  for (var half = {{CREWS}}u / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (crew >= half && crew < 2u * half) {
//#for j in EACH
      room[((crew - half) * {{EACH}}u + {{j}}u) * CREW + own] = bitcast<vec4<u32>>(sum{{j}});
//#endfor
    }
    workgroupBarrier();
    if (crew < half) {
//#for j in EACH
      sum{{j}} += bitcast<vec4<f32>>(room[(crew * {{EACH}}u + {{j}}u) * CREW + own]);
//#endfor
    }
  }
//#if ROUNDS
  workgroupBarrier();
  if (crew == 0u) {
//#for j in EACH
    room[{{j}}u * CREW + own] = bitcast<vec4<u32>>(vec4<f32>(geglu(sum{{j}}), 0.0, 0.0));
//#endfor
  }
  workgroupBarrier();
  round_tile(group, thread);
//#else
  if (crew > 0u) { return; }
//#for j in EACH
//#if EXPERTS
  if (row + {{j}}u * STEP < tile.z) {
    finish(0u, order[tile.y + row + {{j}}u * STEP], group.x * {{COLUMNS}}u + 4u * column, sum{{j}});
  }
//#else
  finish(group.z, group.y * {{ROWS}}u + row + {{j}}u * STEP, group.x * {{COLUMNS}}u + 4u * column, sum{{j}});
//#endif
//#endfor
//#endif
}

// Where row i of the tile comes from; rows past the end repeat the last one.
fn x_row(y_tile: u32, i: u32) -> u32 {
//#if EXPERTS
  let tile = tiles[y_tile];
  return order[tile.y + min(i, tile.z - 1u)] / params.share;
//#else
  return min(y_tile * {{ROWS}}u + i, params.rows - 1u);
//#endif
}

// A vector of the batch that begins with block `start`; what lies past the share's end is zeros.
fn get_x(from_: u32, part: u32, start: u32, end: u32) -> vec4<u32> {
  if (start + part / {{X_PARTS}}u >= end) { return vec4<u32>(); }
  return x[from_ + start * {{X_PARTS}}u];
}

//#if GEGLU
fn geglu(sums: vec4<f32>) -> vec2<f32> {
  return vec2<f32>(gelu(sums.x) * sums.y, gelu(sums.z) * sums.w);
}
//#endif

//#if ROUNDS
// Rounds the results that lie in `room`, two from each thread of a crew: one block per thread.
fn round_tile(group: vec3<u32>, thread: u32) {
  const WIDE = {{COLUMNS}}u / 64u;  // blocks
  let row = thread / WIDE;
  let r = group.y * {{ROWS}}u + row;
  let n = group.x * {{COLUMNS}}u + thread % WIDE * 64u;
  if (row >= {{ROWS}}u || r >= params.rows || n >= params.n) { return; }
  let at = row / STEP * CREW + row % STEP * ACROSS + thread % WIDE * 16u;
//#for i in 8
  let x{{i}} = bitcast<vec4<f32>>(vec4<u32>(room[at + 2u * {{i}}u].xy, room[at + 2u * {{i}}u + 1u].xy));
//#endfor
  put_block((r * params.y_stride + params.y_offset + n / 2u) / 32u, x0, x1, x2, x3, x4, x5, x6, x7);
}
//#else

fn finish(share: u32, r: u32, n: u32, sums: vec4<f32>) {
  if (r >= params.rows) { return; }
//#if GEGLU
  let two = geglu(sums);
  if (n < params.n) { write(share, r, n / 2u, two.x); }
  if (n + 2u < params.n) { write(share, r, n / 2u + 1u, two.y); }
//#else
  for (var i = 0u; i < 4u && n + i < params.n; i++) { write(share, r, n + i, sums[i]); }
//#endif
}

fn write(share: u32, r: u32, n: u32, value: f32) {
  var result = value;
//#if PLE
  result = gelu(result) * side[r * params.side_stride + params.side_offset + n];
//#endif
//#if SOFTCAP
  result = softcap(result, params.cap);
//#endif
//#if WEIGHTED
  result *= weights[r];
//#endif
  y[(share * params.rows + r) * params.y_stride + params.y_offset + n] = result;
}
//#endif
