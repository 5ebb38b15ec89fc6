// y[p] = x[p] + T[p % across] + T[places + p / across]: patches, row by row, learn their column and their row.
//
//   T    [2 · places, K]  in planes (block_{{TYPE}}.wgsl): the columns' vectors, then the rows'
//   x, y [patches, K] f32
//
// One thread does 32 columns. Grid: (K / 32 / 64, patches).

struct Params {
  blocks: u32,  // K / 32
  across: u32,
  places: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.blocks) { return; }
  let column = load32(id.y % params.across, id.x);
  let row = load32(params.places + id.y / params.across, id.x);
  let at = (id.y * params.blocks + id.x) * 8u;
  y[at] = x[at] + column.a + row.a;
  y[at + 1u] = x[at + 1u] + column.b + row.b;
  y[at + 2u] = x[at + 2u] + column.c + row.c;
  y[at + 3u] = x[at + 3u] + column.d + row.d;
  y[at + 4u] = x[at + 4u] + column.e + row.e;
  y[at + 5u] = x[at + 5u] + column.f + row.f;
  y[at + 6u] = x[at + 6u] + column.g + row.g;
  y[at + 7u] = x[at + 7u] + column.h + row.h;
}
