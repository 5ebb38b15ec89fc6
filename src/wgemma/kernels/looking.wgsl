// What the kernels of attention are told, and which positions a row sees: p ≤ t; in sliding layers t − p < window +
// row.used − 1, up to row.sees instead of t. Position p lies at p % ring − first of a segment.

struct Params {
  heads: u32,
  kv_heads: u32,
  stride: u32,
  window: u32,     // 0: all
  ring: u32,
  first: u32,      // of this segment, as a place in the ring
  count: u32,      // places in this segment
  splits: u32,
  split: u32,      // keys per split
  resumes: u32,    // partial holds what earlier segments gave
  final_segment: u32,
  eps: f32,
}
//#include row
@group(0) @binding(0) var<uniform> params: Params;

// The positions [begin, end) of a row's split: none where begin is not below end.
fn seen(row: Row, which: u32) -> vec2<u32> {
  var begin = 0u;
  var end = row.position + 1u;
  if (params.window > 0u) {
    begin = max(row.position + 1u, params.window) - params.window;
    begin = begin - min(begin, max(row.used, 1u) - 1u) + which * params.split;
    end = row.sees + 1u;
    if (which + 1u < params.splits) { end = min(end, begin + params.split); }
  } else {
    begin = params.first + which * params.split;
    end = min(min(end, begin + params.split), params.first + params.count);
  }
  return vec2<u32>(begin, select(end, begin, row.used == 0u));
}
