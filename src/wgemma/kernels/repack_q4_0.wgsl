// Q4_0 (18 bytes): d f16, then 16 bytes whose low nibbles are elements 0–15 and high ones 16–31.

fn repack(block: u32, goal: u32) {
  let at = block * 18u;
  for (var i = 0u; i < 4u; i++) {
    var part = 0u;
    for (var j = 0u; j < 8u; j++) {
      let element = 8u * i + j;
      let b = byte(at + 2u + (element & 15u));
      part |= nibble(j, (b >> ((element >> 4u) * 4u)) & 15u);
    }
    codes[goal * 4u + i] = part;
  }
  put_half(goal, half_word(at));
}
//#include put_half
