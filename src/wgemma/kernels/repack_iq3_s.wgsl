// IQ3_S (110 bytes): d f16; 64 bytes, eight grid indices per sub-block; 8 bytes of their ninth bits; 32 bytes of signs;
// 4 bytes of scales: a nibble n per sub-block stands for 2n + 1.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 110u;
  let s = block & 7u;
  put_grid(goal, at, s);
  put_steps(goal, at, s);
}

fn step_of(at: u32, s: u32) -> u32 {
  return 2u * ((byte(at + 106u + (s >> 1u)) >> (4u * (s & 1u))) & 15u) + 1u;
}

fn entry_of(at: u32, s: u32, i: u32) -> u32 {
  return byte(at + 2u + 8u * s + i) | (((byte(at + 66u + s) >> i) & 1u) << 8u);
}

fn signs_of(at: u32, s: u32, i: u32) -> u32 {
  return byte(at + 74u + 4u * s + (i >> 1u)) >> (4u * (i & 1u));
}
//#include grid
//#include put_steps
