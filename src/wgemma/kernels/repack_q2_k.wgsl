// Q2_K (84 bytes): 16 bytes, scale in the low nibble and min in the high; 64 bytes of two-bit codes; d, dmin f16.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 84u;
  let s = block & 7u;
  put_two_bits(goal, at + 16u, s);
  let super_block = (goal >> 3u) * 5u;
  if (s == 0u) { scales[super_block] = word(at + 80u); }
  if ((s & 1u) == 0u) { scales[super_block + 1u + (s >> 1u)] = word(at + 2u * s); }
}
//#include put_two_bits
