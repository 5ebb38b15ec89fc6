// Q5_0 (22 bytes): d f16, 32 high bits, 16 bytes of nibbles as in Q4_0. The offset −16 d becomes the plane's m.
// Q5_1 (24 bytes): d f16, m f16, high bits, nibbles.

fn repack(block: u32, goal: u32) {
//#if Q5_1
  let at = block * 24u + 2u;
  let dm = half_word(at - 2u) | (half_word(at) << 16u);
//#else
  let at = block * 22u;
  let d = half_word(at);
  // −16 d: the sign flips and the exponent grows by four; a subnormal d is shifted into range first.
  let m = pack2x16float(vec2<f32>(0.0, -16.0 * bitcast<f32>(widen(d)))) & 0xffff0000u;
  let dm = d | m;
//#endif
  put_nibbles(goal, at + 6u);
  scales[goal * 2u] = word(at + 2u);
  scales[goal * 2u + 1u] = dm;
}
//#include put_nibbles
