// IQ4_XS (136 bytes): d f16; 16 bits, two for each sub-block's scale, above four more in the next 4 bytes; 128 bytes,
// 16 for each sub-block, as in Q4_0.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 136u;
  let s = block & 7u;
  put_planes(goal, at + 8u + 16u * s);
  put_steps(goal, at, s);
}

fn step_of(at: u32, s: u32) -> u32 {
  let low = (byte(at + 4u + (s >> 1u)) >> (4u * (s & 1u))) & 15u;
  return low | (((half_word(at + 2u) >> (2u * s)) & 3u) << 4u);
}
//#include put_planes
//#include iq4_labels
//#include put_steps
