// Q6_K (210 bytes): 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d f16. Element e of a block with
// e = 128h + 32g + l: low nibble in byte 64h + l + 32(g & 1) (upper half for g ≥ 2), high bits in 2g of byte 32h + l.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 210u;
  let s = block & 7u;
  let h = s >> 2u;
  let g = s & 3u;
  let low = at + 64u * h + 32u * (g & 1u);
  for (var i = 0u; i < 4u; i++) {
    var part = 0u;
    for (var j = 0u; j < 8u; j++) {
      part |= nibble(j, (byte(low + 8u * i + j) >> ((g >> 1u) * 4u)) & 15u);
    }
    codes[goal * 4u + i] = part;
  }
  let super_block = (goal >> 3u) * 21u;
  for (var i = 0u; i < 2u; i++) {
    var high = 0u;
    for (var j = 0u; j < 16u; j++) {
      high |= ((byte(at + 128u + 32u * h + 16u * i + j) >> (2u * g)) & 3u) << (8u * (j & 3u) + 2u * (j >> 2u));
    }
    scales[super_block + 5u + 2u * s + i] = high;
  }
  if (s == 0u) { scales[super_block] = widen(half_word(at + 208u)); }
  if ((s & 1u) == 0u) { scales[super_block + 1u + (s >> 1u)] = word(at + 192u + 2u * s); }
}
