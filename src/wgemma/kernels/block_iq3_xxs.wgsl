// Weights in IQ3_XXS: w = d · scale / 2 · (spread(code) − 31), which is one of ±2, ±6, ±10, … ±26, ±31; a scale per 32, d
// per 256. The file stores four weights as an index into a grid of 256 and four signs. Here each weight has a code of
// its own: 4.4 bits instead of 3.1, and no look-ups.
//
//   codes  [N, K/32]       vec4<u32>   codes.wgsl
//   scales [N, K/256, 3]   u32         d as f32; two words of eight scales

//#include byte_scale
const UNIT = 0.5;
const ZERO = 0.0;
const OFFSET = 31.0;

// Codes to 0, 5, 9, 13, … 57, 62: four times the code, plus one unless it is 0, plus another one if it is 15.
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
