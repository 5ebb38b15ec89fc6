// Weights in IQ4_NL: w = d · level, one d per 32.
//
//   codes  [N, K/32]      vec4<u32>   four planes, bit_planes.wgsl
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

//#include half_scale
//#include iq4_levels

fn scale_of(raw: Raw) -> f32 {
  return unpack2x16float(raw.halves >> raw.shift).x;
}
