// Weights in IQ4_XS: w = d · scale · level, a signed scale per 32, d per 256.
//
//   codes  [N, K/32]       vec4<u32>   four planes, bit_planes.wgsl
//   scales [N, K/256, 3]   u32         d as f32; two words of eight scales

//#include byte_scale
const UNIT = 1.0;
const ZERO = 32.0;
//#include iq4_levels
