// What a level is called in the planes (iq4_levels.wgsl), by its number in the file, from the lowest bits on.
//
//   0–15 are called  14 1 6 9 13 3 5 11 4 7 0 15 8 12 2 10

const LABELS = vec2<u32>(0xb53d961eu, 0xa2c8f074u);
