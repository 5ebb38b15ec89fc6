// Weights in Q4_1: w = d · code + m, one d and m per 32.
//
//   codes  [N, K/32]  vec4<u32>   codes.wgsl
//   scales [N, K/32]  u32         d (low) and m (high) as f16

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  halves: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  return Raw(codes[at], scales[at]);
}

fn codes_of(raw: Raw) -> Codes {
  return nibbles(raw.q);
}

fn dm_of(raw: Raw) -> vec2<f32> {
  return unpack2x16float(raw.halves);
}

//#include affine
