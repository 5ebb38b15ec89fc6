// Weights in IQ3_XXS: w = d · scale · (spread(code) − 31), a scale per 32, d per 256. A weight is one of 2, 6, 10, … 26,
// 31 or its opposite, which the file tells by fours, out of a grid of 256; here each is a four-bit code: 4.4 bits per
// weight, where the file takes 3.1.
//
//   codes  [N, K/32]      vec4<u32>   codes.wgsl
//   scales [N, K/256, 3]  u32         d as f32; eight scales as bytes

//#include byte_scale
const OFFSET = 31.0;

// 0, 5, 9, 13, … 57, 62: four times the code, one more unless it is 0, and another one if it is 15.
fn spread(c: vec4<u32>) -> vec4<u32> {
  const BIT = vec4<u32>(0x10101010u);
  let more = ((c + vec4<u32>(0x0f0f0f0fu)) & BIT) + ((c + vec4<u32>(0x01010101u)) & BIT);
  return (c << vec4<u32>(2u)) + (more >> vec4<u32>(4u));
}

fn codes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  return Codes(spread(c.low), spread(c.high));
}

//#include centred
