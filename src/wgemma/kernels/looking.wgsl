// What the kernels of attention are told, and which positions a row sees: p ≤ t; in sliding layers t − p < window +
// row.used − 1, up to row.sees instead of t. Where a position lies is in tables.wgsl. SEGMENTED: its place may be outside
// [first, first + count), in another segment of the arena; then it has no weight in this dispatch.

struct Params {
  heads: u32,
  kv_heads: u32,
  stride: u32,
  window: u32,     // 0: all
  table: u32,
  table_step: u32,
  first: u32,      // place of this segment
  count: u32,      // places in it
  splits: u32,
  resumes: u32,    // partial holds what earlier segments gave
  final_segment: u32,
  eps: f32,
}
//#include row
//#include tables
@group(0) @binding(0) var<uniform> params: Params;

// The positions [begin, end) of a row's split: none where begin is not below end. What the row sees is shared out
// anew for every row, in whole turns of {{TURN}} keys, so that all splits have work as soon as there is some.
fn seen(row: Row, which: u32) -> vec2<u32> {
  var begin = 0u;
  var end = row.position + 1u;
  if (params.window > 0u) {
    begin = max(row.position + 1u, params.window) - params.window;
    begin -= min(begin, max(row.used, 1u) - 1u);
    end = row.sees + 1u;
  }
  end = select(max(begin, end), begin, row.used == 0u);
  let turns = (end - begin + {{TURN}}u - 1u) / {{TURN}}u;
  let share = (turns + params.splits - 1u) / params.splits * {{TURN}}u;
  let first = begin + which * share;
  return vec2<u32>(first, min(first + share, end));
}
