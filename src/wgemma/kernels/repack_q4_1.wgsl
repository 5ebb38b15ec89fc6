// Q4_1 (20 bytes): d f16, m f16, nibbles as in Q4_0.

fn repack(block: u32, goal: u32) {
  let at = block * 20u;
  put_nibbles(goal, at + 4u);
  scales[goal] = word(at);
}
//#include put_nibbles
