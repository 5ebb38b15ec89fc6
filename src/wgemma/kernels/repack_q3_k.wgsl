// Q3_K (110 bytes): 32 bytes of high bits (bit s of byte l: element l of sub-block s); 64 bytes of low two bits; 12 bytes of
// scales; d f16. Scale i of 16 is nibble i of eight bytes (all low ones first), and above it bits 2 (i / 4) of byte
// 8 + i % 4; it is stored 32 higher.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 110u;
  let s = block & 7u;
  put_two_bits(goal, at + 32u, s);
  let super_block = (goal >> 3u) * 13u;
  var high = 0u;
  for (var l = 0u; l < 32u; l++) {
    high |= ((byte(at + l) >> s) & 1u) << (8u * (l & 3u) + (l >> 2u));
  }
  scales[super_block + 5u + s] = high;
  if (s == 0u) { scales[super_block] = widen(half_word(at + 108u)); }
  if ((s & 1u) == 0u) {
    var steps = 0u;
    for (var i = 0u; i < 4u; i++) { steps |= ((scale_of(at + 96u, 2u * s + i) - 32u) & 0xffu) << (8u * i); }
    scales[super_block + 1u + (s >> 1u)] = steps;
  }
}

fn scale_of(at: u32, i: u32) -> u32 {
  let low = (byte(at + (i & 7u)) >> (4u * (i >> 3u))) & 15u;
  return low | (((byte(at + 8u + (i & 3u)) >> (2u * (i >> 2u))) & 3u) << 4u);
}
//#include put_two_bits
