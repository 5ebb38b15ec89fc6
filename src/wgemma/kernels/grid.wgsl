// The nibble plane of 32 weights that IQ3_XXS and IQ3_S store as eight indices into a grid of four-weight entries
// (files/grids.py): entry_of(at, s, i) is index i of sub-block s, and signs_of(at, s, i) has a bit for each of its four
// weights that is below zero. A code is 8 + level, or 7 − level below zero.
//
//   grid  {{WORDS}} words, two entries each: twelve bits, three per level
//
// One thread fills it: compilers would copy a constant array for every look-up.

var<workgroup> grid: array<u32, {{WORDS}}>;

fn hold_grid(thread: u32) {
  if (thread > 0u) { return; }
  {{GRID}}
}

fn put_grid(goal: u32, at: u32, s: u32) {
  for (var i = 0u; i < 4u; i++) {
    codes[goal * 4u + i] = four_codes(at, s, 2u * i) | (four_codes(at, s, 2u * i + 1u) << 4u);
  }
}

fn four_codes(at: u32, s: u32, i: u32) -> u32 {
  let entry = entry_of(at, s, i);
  let levels = grid[entry >> 1u] >> (16u * (entry & 1u));
  let signs = signs_of(at, s, i);
  var four = 0u;
  for (var j = 0u; j < 4u; j++) {
    let level = (levels >> (3u * j)) & 7u;
    four |= select(8u + level, 7u - level, ((signs >> j) & 1u) != 0u) << (8u * j);
  }
  return four;
}
