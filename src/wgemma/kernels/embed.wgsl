// y[r, k] = scale · W[row(r)][k] for the rows of W that lie in this part; other rows of y are left alone.
// row(r) is the token of row r, or r itself where the rows were fetched beforehand (params.by_index). A soft row, a piece
// of an image or a sound, has a number instead of a token, from SOFT on: it is left alone, or takes row 0 (params.pads).
//
//   rows [R]     Row   row.wgsl
//   y    [R, K]  f32
//
// One thread does 32 columns. Grid: (K / 32 / 64, R).

struct Params {
  blocks: u32,    // K / 32
  first: u32,     // the first row of W in this part
  count: u32,     // rows in this part
  by_index: u32,
  scale: f32,
  pads: u32,
}
const SOFT = 0x40000000u;
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
//#include row
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.blocks) { return; }
  let number = rows[id.y].token;
  let token = select(number, 0u, params.pads != 0u && number >= SOFT);
  let row = select(token, id.y, params.by_index != 0u) - params.first;
  if (row >= params.count) { return; }
  let w = load32(row, id.x);
  let at = (id.y * params.blocks + id.x) * 8u;
  y[at] = params.scale * w.a;
  y[at + 1u] = params.scale * w.b;
  y[at + 2u] = params.scale * w.c;
  y[at + 3u] = params.scale * w.d;
  y[at + 4u] = params.scale * w.e;
  y[at + 5u] = params.scale * w.f;
  y[at + 6u] = params.scale * w.g;
  y[at + 7u] = params.scale * w.h;
}
