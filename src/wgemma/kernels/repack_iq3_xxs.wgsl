// IQ3_XXS (98 bytes): d f16; 64 bytes, eight grid indices per sub-block; a word per sub-block: four times seven signs,
// where an eighth makes the number of set ones even, and a four-bit n, which stands for (2n + 1) / 4. The file's levels
// are twice those of the planes, so their d is d / 2.

fn repack(block: u32, goal: u32) {
  let at = (block >> 3u) * 98u;
  let s = block & 7u;
  put_grid(goal, at, s);
  let super_block = (goal >> 3u) * 3u;
  if (s == 0u) { scales[super_block] = bitcast<u32>(0.5 * bitcast<f32>(widen(half_word(at)))); }
  if ((s & 3u) == 0u) {
    var steps = 0u;
    for (var i = 0u; i < 4u; i++) { steps |= (2u * (byte(at + 69u + 4u * (s + i)) >> 4u) + 1u) << (8u * i); }
    scales[super_block + 1u + (s >> 2u)] = steps;
  }
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
