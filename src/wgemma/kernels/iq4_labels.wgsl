// What a level is called in the planes (iq4_levels.wgsl), by its number in the file, from the lowest bits on.
//
//   0–15 are called  2 15 8 7 6 9 14 3 0 12 13 10 5 4 11 1

const LABELS = vec2<u32>(0x3e9678f2u, 0x1b45adc0u);
