// Weights in Q4_0: w = d · (code − 8), one d per 32.
//
//   codes  [N, K/32]      vec4<u32>   codes.wgsl
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

//#include half_scale
const OFFSET = 8.0;

fn codes_of(raw: Raw) -> Codes {
  return nibbles(raw.q);
}

fn scale_of(raw: Raw) -> f32 {
  return unpack2x16float(raw.halves >> raw.shift).x;
}

//#include centred
