// IQ3_S (110 bytes): d f16; 64 bytes, eight entries of the grid for each sub-block; 8 bytes with their ninth bits; 32 bytes
// of signs; 4 bytes of scales, a nibble for each sub-block, which scales by twice that and one.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 110u;
  let s = block & 7u;
  put_grid(goal, at, s);
  let super_block = (goal >> 3u) * 3u;
  if (s == 0u) { scales[super_block] = widen(half_word(at)); }
  if ((s & 3u) == 0u) {
    var steps = 0u;
    for (var i = 0u; i < 4u; i++) {
      steps |= (2u * ((byte(at + 106u + ((s + i) >> 1u)) >> (4u * (i & 1u))) & 15u) + 1u) << (8u * i);
    }
    scales[super_block + 1u + (s >> 2u)] = steps;
  }
}

fn level_index(at: u32, s: u32, i: u32) -> u32 {
  return byte(at + 2u + 8u * s + i) | (((byte(at + 66u + s) >> i) & 1u) << 8u);
}

fn negative(at: u32, s: u32, element: u32) -> bool {
  return ((byte(at + 74u + 4u * s + (element >> 3u)) >> (element & 7u)) & 1u) != 0u;
}
//#include grid
