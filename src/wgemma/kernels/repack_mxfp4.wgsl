// MXFP4 (17 bytes): an exponent e for 2^(e − 128), then nibbles as in Q4_0. The two smallest scales are subnormal.

fn repack(block: u32, goal: u32) {
  let at = block * 17u;
  put_planes(goal, at + 1u);
  let e = byte(at);
  put_half(goal, select((e - 1u) << 7u, 0x20u << e, e < 2u));
}
//#include put_half
//#include put_planes
const LABELS = vec2<u32>(0x62ead953u, 0x08c17bf4u);  // what block_mxfp4.wgsl calls 0 1 2 3 4 6 8 12, then their opposites
