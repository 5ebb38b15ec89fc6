// 32 four-bit codes in one 16-byte word: byte j of part i holds element 8i + j in its low nibble, 8i + 4 + j in its
// high one, so that a shift and a mask give four consecutive elements.

fn low_nibbles(part: u32) -> vec4<u32> {
  return (vec4<u32>(part) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
}

fn high_nibbles(part: u32) -> vec4<u32> {
  return (vec4<u32>(part) >> vec4<u32>(4u, 12u, 20u, 28u)) & vec4<u32>(15u);
}

// Small integers as floats, less `offset`: set into the mantissa of 2²³, which costs a tenth of a conversion and is
// just as exact.
fn floats(codes: vec4<u32>, offset: f32) -> vec4<f32> {
  return bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u)) - (8388608.0 + offset);
}
