// Weights in MXFP4: w = 2^e · level[code], one e per 32. Levels are floats of four bits (E2M1), doubled: 0 1 2 3 4 6 8 12
// and, from code 8 on, the same below zero.
//
//   codes  [N, K/32]      vec4<u32>   codes.wgsl
//   scales [N · K/32 / 2] u32         2^e as the upper half of a float, two neighbouring blocks to a word

//#include half_scale
const LEVELS = vec4<u32>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);

fn scale_of(raw: Raw) -> f32 {
  return bitcast<f32>((raw.halves >> raw.shift) << 16u);
}

//#include levels
