// What a level is called in the planes (iq4_levels.wgsl), by its number in the file, from the lowest bits on.
//
//   0–15 are called  7 10 13 2 3 12 11 6 5 9 8 15 0 1 14 4

const LABELS = vec2<u32>(0x6bc32da7u, 0x4e10f895u);
