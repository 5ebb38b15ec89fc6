// Weights in Q5_0: w = d · (code − 16), and Q5_1: w = d · code + m; five-bit codes, one scale per 32.
//
//   codes  [N, K/32]     vec4<u32>   the low four bits, codes.wgsl
//   scales [N, K/32, 2]  u32         the 32 high bits, element i in bit i; d (low) and m (high) as f16

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  high: u32,
  halves: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  return Raw(codes[at], scales[2u * at], scales[2u * at + 1u]);
}

fn dm_of(raw: Raw) -> vec2<f32> {
  return unpack2x16float(raw.halves);
}

//#include five_bits
//#include affine
