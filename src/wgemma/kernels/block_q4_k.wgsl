// Weights in Q4_K: w = d · scale · code − dmin · min, with a six-bit scale and min per 32 and d, dmin per 256.
//
//   codes  [N, K/32]      vec4<u32>   codes.wgsl
//   scales [N, K/256, 5]  u32         d (low) and dmin (high) as f16; then (scale, min) bytes of sub-blocks 2i, 2i + 1

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  halves: u32,
  pairs: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let super_block = (at >> 3u) * 5u;
  return Raw(codes[at], scales[super_block], scales[super_block + 1u + ((at & 7u) >> 1u)], (at & 1u) * 16u);
}

fn codes_of(raw: Raw) -> Codes {
  return nibbles(raw.q);
}

//#include k_pair
//#include affine
