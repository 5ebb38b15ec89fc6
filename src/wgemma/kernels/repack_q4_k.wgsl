// Q4_K (144 bytes): d, dmin f16; 12 bytes of scales; 128 bytes, each pair of sub-blocks sharing 32 (low, then high).

//#include k_scales
fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 144u;
  let s = block & 7u;
  let shift = (s & 1u) * 4u;
  for (var i = 0u; i < 4u; i++) {
    var part = 0u;
    for (var j = 0u; j < 8u; j++) {
      part |= nibble(j, (byte(at + 16u + (s >> 1u) * 32u + 8u * i + j) >> shift) & 15u);
    }
    codes[goal * 4u + i] = part;
  }
  let super_block = (goal >> 3u) * 5u;
  if (s == 0u) { scales[super_block] = word(at); }
  if ((s & 1u) == 0u) {
    scales[super_block + 1u + (s >> 1u)] = scale_and_min(at + 4u, s) | (scale_and_min(at + 4u, s + 1u) << 16u);
  }
}
