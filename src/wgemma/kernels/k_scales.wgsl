// The twelve packed bytes of Q4_K and Q5_K: six-bit scale (low byte of the result) and min of sub-block s.

fn scale_and_min(at: u32, s: u32) -> u32 {
  if (s < 4u) { return (byte(at + s) & 63u) | ((byte(at + s + 4u) & 63u) << 8u); }
  let low = byte(at + s + 4u);
  let scale = (low & 15u) | ((byte(at + s - 4u) >> 6u) << 4u);
  return scale | (((low >> 4u) | ((byte(at + s) >> 6u) << 4u)) << 8u);
}
