// IQ3_XXS (98 bytes): d f16; 64 bytes, eight entries of the grid for each sub-block; a word for each: four times seven signs,
// the eighth making their number even, and four bits of scale, which scales by a quarter of twice that and one. Levels are
// halved in the planes, so d is, too.

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

fn level_index(at: u32, s: u32, i: u32) -> u32 {
  return byte(at + 2u + 8u * s + i);
}

fn negative(at: u32, s: u32, element: u32) -> bool {
  let seven = (word(at + 66u + 4u * s) >> (7u * (element >> 3u))) & 127u;
  return (select(seven >> (element & 7u), countOneBits(seven), (element & 7u) == 7u) & 1u) != 0u;
}
//#include grid
