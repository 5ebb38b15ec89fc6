// The nibble plane of a block whose 16 bytes from `at` on hold elements 0–15 in their low nibbles and 16–31 in the high.

fn put_nibbles(goal: u32, at: u32) {
  for (var i = 0u; i < 4u; i++) {
    var part = 0u;
    for (var j = 0u; j < 8u; j++) {
      let element = 8u * i + j;
      part |= nibble(j, (byte(at + (element & 15u)) >> ((element >> 4u) * 4u)) & 15u);
    }
    codes[goal * 4u + i] = part;
  }
}
