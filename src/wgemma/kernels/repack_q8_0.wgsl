// Q8_0 (34 bytes): d f16, then 32 signed bytes.

fn repack(block: u32, goal: u32) {
  let at = block * 34u;
  for (var i = 0u; i < 8u; i++) {
    codes[goal * 8u + i] = word(at + 2u + 4u * i);
  }
  put_half(goal, half_word(at));
}
//#include put_half
