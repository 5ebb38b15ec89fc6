// The two-bit plane (two_bits.wgsl) of sub-block s of Q2_K and Q3_K: element l of s = 4h + g is in bits 2g of byte 32h + l
// of 64 from `at` on.

fn put_two_bits(goal: u32, at: u32, s: u32) {
  for (var i = 0u; i < 2u; i++) {
    var part = 0u;
    for (var j = 0u; j < 16u; j++) {
      let code = (byte(at + 32u * (s >> 2u) + 16u * i + j) >> (2u * (s & 3u))) & 3u;
      part |= code << (8u * (j & 3u) + 2u * (j >> 2u));
    }
    codes[goal * 2u + i] = part;
  }
}
