// 32 small integers as bytes: byte j of word i is element 4i + j. Floats made of them are exact: a code is set into the
// mantissa of 2²³, which costs a tenth of a conversion.

struct Codes {
  low: vec4<u32>,
  high: vec4<u32>,
}

// 32 four-bit codes lie in one 16-byte word: byte j of part i holds element 8i + j in its low nibble, 8i + 4 + j in its
// high one.
fn nibbles(q: vec4<u32>) -> Codes {
  let even = q & vec4<u32>(0x0f0f0f0fu);
  let odd = (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
  return Codes(vec4<u32>(even.x, odd.x, even.y, odd.y), vec4<u32>(even.z, odd.z, even.w, odd.w));
}

// Four unsigned bytes, less `offset`.
fn floats(word: u32, offset: f32) -> vec4<f32> {
  let bytes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
  return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - (8388608.0 + offset);
}

fn numbers(c: Codes, offset: f32) -> Block {
  return Block(
    floats(c.low.x, offset), floats(c.low.y, offset), floats(c.low.z, offset), floats(c.low.w, offset),
    floats(c.high.x, offset), floats(c.high.y, offset), floats(c.high.z, offset), floats(c.high.w, offset),
  );
}

//#if QUICK
// Σ code · x over the first and over the last sixteen.
fn products(c: Codes, x: Bytes) -> vec2<i32> {
  let sums = vec2<i32>(dot_sixteen(c.low, x.low), dot_sixteen(c.high, x.high));
//#if FINE
  return 256 * sums + vec2<i32>(dot_sixteen(c.low, x.fine_low), dot_sixteen(c.high, x.fine_high));
//#else
  return sums;
//#endif
}

fn dot_sixteen(c: vec4<u32>, x: vec4<u32>) -> i32 {
  return dot4I8Packed(c.x, x.x) + dot4I8Packed(c.y, x.y) + dot4I8Packed(c.z, x.z) + dot4I8Packed(c.w, x.w);
}
//#endif
