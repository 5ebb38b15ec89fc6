// The nibble plane of 32 weights that IQ3_XXS and IQ3_S store as eight indices into a grid of four-weight entries
// (files/grids.py). level_index(at, s, i) is index i of sub-block s; negative(at, s, e) tells whether element e is below
// zero. A code is 8 + level, or 7 − level below zero.
//
//   GRID  {{WORDS}} words, two entries each: twelve bits, three per level

const GRID = array<u32, {{WORDS}}>({{GRID}});

fn put_grid(goal: u32, at: u32, s: u32) {
  for (var i = 0u; i < 4u; i++) {
    var part = 0u;
    for (var j = 0u; j < 8u; j++) {
      let element = 8u * i + j;
      let entry = level_index(at, s, element >> 2u);
      let four = GRID[entry >> 1u] >> (16u * (entry & 1u));
      let level = (four >> (3u * (element & 3u))) & 7u;
      part |= nibble(j, select(8u + level, 7u - level, negative(at, s, element)));
    }
    codes[goal * 4u + i] = part;
  }
}
