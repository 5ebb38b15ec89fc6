// Weights in IQ3_S: w = d · scale · (2 · code − 15), a scale per 32, d per 256. A weight is one of 1, 3, … 15 or its
// opposite, which the file tells by fours, out of a grid of 512; here each is a four-bit code: 4.4 bits per weight, where
// the file takes 3.4.
//
//   codes  [N, K/32]      vec4<u32>   codes.wgsl
//   scales [N, K/256, 3]  u32         d as f32; eight scales as bytes

//#include byte_scale
const OFFSET = 15.0;

fn codes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  return Codes(c.low << vec4<u32>(1u), c.high << vec4<u32>(1u));
}

//#include centred
