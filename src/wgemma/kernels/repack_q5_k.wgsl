// Q5_K (176 bytes): d, dmin f16; 12 bytes of scales; 32 bytes of high bits (bit s of byte l: element l of sub-block s);
// 128 bytes of nibbles as in Q4_K.

//#include k_scales
fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 176u;
  let s = block & 7u;
  let shift = (s & 1u) * 4u;
  for (var i = 0u; i < 4u; i++) {
    var part = 0u;
    for (var j = 0u; j < 8u; j++) {
      part |= nibble(j, (byte(at + 48u + (s >> 1u) * 32u + 8u * i + j) >> shift) & 15u);
    }
    codes[goal * 4u + i] = part;
  }
  var high = 0u;
  for (var l = 0u; l < 32u; l++) {
    high |= ((byte(at + 16u + l) >> s) & 1u) << l;
  }
  let super_block = (goal >> 3u) * 13u;
  scales[super_block + 5u + s] = high;
  if (s == 0u) { scales[super_block] = word(at); }
  if ((s & 1u) == 0u) {
    scales[super_block + 1u + (s >> 1u)] = scale_and_min(at + 4u, s) | (scale_and_min(at + 4u, s + 1u) << 16u);
  }
}
