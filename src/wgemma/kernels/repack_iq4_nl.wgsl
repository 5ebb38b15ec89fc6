// IQ4_NL (18 bytes): d f16, then 16 bytes whose low nibbles are elements 0–15 and high ones 16–31, as in Q4_0.

fn repack(block: u32, goal: u32) {
  let at = block * 18u;
  put_planes(goal, at + 2u);
  put_half(goal, half_word(at));
}
//#include put_half
//#include put_planes
//#include iq4_labels
