// What adapters add to the embedding of the rows' tokens:
//
//   y[r, k] += scale · Σ_j scales[r, j] · table[token(r), j] · b[j, k]
//
//   rows [R] Row (row.wgsl); table [vocab, rank] f32; b [rank, K] f32; y [R, K] f32
//   scales [R, scale_step] f32, a step of 0 being one setting for all rows
//   a soft row, whose number is no token, is left alone (embed.wgsl)
//
// One thread per result. Grid: (K / 64, R).

struct Params {
  columns: u32,  // K
  rank: u32,
  scale: f32,
  scale_step: u32,
}
const SOFT = 0x40000000u;
@group(0) @binding(0) var<uniform> params: Params;
//#include row
@group(0) @binding(1) var<storage, read> rows: array<Row>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
@group(0) @binding(4) var<storage, read> scales: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let token = rows[id.y].token;
  if (id.x >= params.columns || token >= SOFT) { return; }
  var sum = 0.0;
  for (var j = 0u; j < params.rank; j++) {
    sum += (scales[(id.y * params.scale_step) + j] * table[(token * params.rank) + j]) * b[(j * params.columns) + id.x];
  }
  y[(id.y * params.columns) + id.x] += params.scale * sum;
}
