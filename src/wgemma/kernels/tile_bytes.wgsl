// y[r, n] = Σ_k W[n, k] · x[r, k] as in tile.wgsl, with x in bytes (to_bytes.wgsl) and W in codes: four products at a time.
//
// A workgroup of {{THREADS}} makes a tile of {{ROWS}} rows × 64 columns of y, {{EACH}} × 8 per thread, 32 of k at a
// time; while it multiplies, what it needs next is on its way to its registers.
//
//   bytes [R, K / 32, 3] vec4<u32>; y [R, y_stride] f32, written from y_offset on
//   EXPERTS and WEIGHTED as in tile.wgsl, `bytes` being [R / share, K / 32, 3]
//
// Grid: (N / 64, R / ROWS, shares), rounded up, or with EXPERTS (N / 64, tiles). ROWS is 32 (64 threads, EACH 4) or more,
// and THREADS no fewer. Several shares of K give y [shares, R, y_stride], for add_up.wgsl; each has a block of 32 at least.

struct Params {
  blocks: u32,  // K / 32
  n: u32,
  rows: u32,
  y_stride: u32,
  y_offset: u32,
//#if EXPERTS
  share: u32,
  first_expert: u32,
  experts: u32,  // in this part
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> bytes: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#include tile_experts

const STEP = {{THREADS}}u / 8u;  // between the rows of one thread

var<workgroup> w_low: array<vec4<u32>, 64>;
var<workgroup> w_high: array<vec4<u32>, 64>;
var<workgroup> w_tails: array<Tails, 64>;
var<workgroup> x_low: array<vec4<u32>, {{ROWS}}>;
var<workgroup> x_high: array<vec4<u32>, {{ROWS}}>;
var<workgroup> x_tails: array<vec4<u32>, {{ROWS}}>;

fn x_of(row: u32) -> Bytes {
  let tails = bitcast<vec4<f32>>(x_tails[row]);
  return Bytes(x_low[row], x_high[row], tails.x, tails.yz);
}

@compute @workgroup_size({{THREADS}})
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let begin = group.z * params.blocks / groups.z;
  let end = (group.z + 1u) * params.blocks / groups.z;
  let column = thread % 8u;  // columns column, column + 8, … of the tile
  let row = thread / 8u;     // rows row, row + STEP, … of the tile
  // What the thread fetches: a row of W and one of x. Rows past the end are computed as the last one, and not written.
//#if EXPERTS
  let tile = tiles[group.y];
  let expert = tile.x - params.first_expert;
  if (tile.z == 0u || expert >= params.experts) { return; }
  let first_w = expert * params.n;
  let from_x = order[tile.y + min(thread, tile.z - 1u)] / params.share;
//#else
  let first_w = 0u;
  let from_x = min(group.y * {{ROWS}}u + thread, params.rows - 1u);
//#endif
  let own_w = first_w + min(group.x * 64u + thread, params.n - 1u);
  var own_x = (from_x * params.blocks + begin) * 3u;
  var raw: Raw;
  if (thread < 64u) { raw = fetch(own_w, begin); }
  var low = bytes[own_x];
  var high = bytes[own_x + 1u];
  var tails = bytes[own_x + 2u];
//#for j in EACH
//#for c in 8
  var sum{{j}}_{{c}} = 0.0;
//#endfor
//#endfor
  for (var block = begin; block < end; block++) {
    workgroupBarrier();
    if (thread < 64u) {
      let codes = bytes_of(raw);
      w_low[thread] = codes.low;
      w_high[thread] = codes.high;
      w_tails[thread] = tails_of(raw);
    }
    if (thread < {{ROWS}}u) {
      x_low[thread] = low;
      x_high[thread] = high;
      x_tails[thread] = tails;
    }
    workgroupBarrier();
    if (block + 1u < end) {
      own_x += 3u;
      if (thread < 64u) { raw = fetch(own_w, block + 1u); }
      low = bytes[own_x];
      high = bytes[own_x + 1u];
      tails = bytes[own_x + 2u];
    }
//#for j in EACH
    let x{{j}} = x_of(row + {{j}}u * STEP);
//#endfor
//#for c in 8
    let codes{{c}} = Codes(w_low[column + {{c}}u * 8u], w_high[column + {{c}}u * 8u]);
    let tails{{c}} = w_tails[column + {{c}}u * 8u];
//#for j in EACH
    sum{{j}}_{{c}} += weighed(tails{{c}}, products(codes{{c}}, x{{j}}), x{{j}}.scale, x{{j}}.sums);
//#endfor
//#endfor
  }
//#for j in EACH
//#if EXPERTS
  var r{{j}} = params.rows;
  if (row + {{j}}u * STEP < tile.z) { r{{j}} = order[tile.y + row + {{j}}u * STEP]; }
//#else
  let r{{j}} = group.y * {{ROWS}}u + row + {{j}}u * STEP;
//#endif
//#for c in 8
  store(group.z, r{{j}}, group.x * 64u + column + {{c}}u * 8u, sum{{j}}_{{c}});
//#endfor
//#endfor
}

fn store(part: u32, r: u32, n: u32, sum: f32) {
  if (r >= params.rows || n >= params.n) { return; }
  var result = sum;
//#if WEIGHTED
  result *= weights[r];
//#endif
  y[(part * params.rows + r) * params.y_stride + params.y_offset + n] = result;
}
