// 32 four-bit codes in one 16-byte word: byte j of part i holds element 8i + j in its low nibble, 8i + 4 + j in its
// high one, so that a mask and a shift give four consecutive elements as bytes.

fn low_nibbles(part: u32) -> vec4<f32> {
  return vec4<f32>(unpack4xU8(part & 0x0f0f0f0fu));
}

fn high_nibbles(part: u32) -> vec4<f32> {
  return vec4<f32>(unpack4xU8((part >> 4u) & 0x0f0f0f0fu));
}
