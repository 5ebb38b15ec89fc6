// 32 two-bit codes lie in two words: that of element 16i + 4k + j in bits 8j + 2k of word i. Sixteen of them as bytes.

fn pairs_of_bits(bits: u32) -> vec4<u32> {
  return (vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u);
}
