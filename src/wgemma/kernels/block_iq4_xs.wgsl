// Weights in IQ4_XS: w = d · scale · level, a signed scale per 32, d per 256.
//
//   codes  [N, K/32]      vec4<u32>   four planes, bit_planes.wgsl
//   scales [N, K/256, 3]  u32         d as f32; eight scales as bytes

//#include byte_scale
//#include iq4_levels
