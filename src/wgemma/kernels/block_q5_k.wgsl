// Weights in Q5_K: w = d · scale · code − dmin · min, five-bit codes, scale and min per 32, d and dmin per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, codes.wgsl
//   scales [N, K/256, 13]  u32         d, dmin as f16; four words of (scale, min) bytes; the high bits of each sub-block

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  high: u32,
  halves: u32,
  pairs: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let first = (at >> 3u) * 13u;
  let sub = at & 7u;
  return Raw(codes[at], scales[first + 5u + sub], scales[first], scales[first + 1u + (sub >> 1u)], (at & 1u) * 16u);
}

//#include five_bits
//#include k_pair
//#include affine
