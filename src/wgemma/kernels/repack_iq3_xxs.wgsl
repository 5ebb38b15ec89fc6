// IQ3_XXS (98 bytes): d f16; 64 bytes, eight grid indices per sub-block; a word per sub-block: four times seven signs,
// where an eighth makes the number of set ones even, and a four-bit n, which stands for (2n + 1) / 4. In the planes, it
// is 2n + 1, and the levels are half of the file's.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 98u;
  let s = block & 7u;
  put_grid(goal, at, s);
  put_steps(goal, at, s);
}

fn step_of(at: u32, s: u32) -> u32 {
  return 2u * (byte(at + 69u + 4u * s) >> 4u) + 1u;
}

fn entry_of(at: u32, s: u32, i: u32) -> u32 {
  return byte(at + 2u + 8u * s + i);
}

fn signs_of(at: u32, s: u32, i: u32) -> u32 {
  let seven = (word(at + 66u + 4u * s) >> (7u * (i >> 1u))) & 127u;
  let eight = seven | (countOneBits(seven) << 7u);
  return eight >> (4u * (i & 1u));
}
//#include grid
//#include put_steps
