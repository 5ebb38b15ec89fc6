// What a level is called in the planes (iq4_levels.wgsl), by its number in the file, from the lowest bits on.
//
//   0–15 are called  5 11 8 10 9 14 4 15 1 13 3 0 2 12 7 6

const LABELS = vec2<u32>(0xf4e9a8b5u, 0x67c203d1u);
