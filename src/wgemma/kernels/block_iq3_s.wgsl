// Weights in IQ3_S: w = d · scale · (2 · code − 15), a scale per 32, d per 256. The file stores four weights as an
// index into a grid of 512 and four signs. Here each weight has a code of its own: 4.4 bits instead of 3.4, and no
// look-ups.
//
//   codes  [N, K/32]       vec4<u32>   codes.wgsl
//   scales [N, K/256, 3]   u32         d as f32; two words of eight scales

//#include byte_scale
const UNIT = 1.0;
const ZERO = 0.0;
const OFFSET = 15.0;

fn codes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  return Codes(c.low << vec4<u32>(1u), c.high << vec4<u32>(1u));
}

//#include centred
