// softcap(y) = cap · tanh(y / cap); a cap of 0 is none. The argument is clamped because some drivers' tanh gives NaN
// beyond, and NaN is told by its bits because clamp may make a number of it: the sampler must see logits that are broken.

fn softcap(y: f32, cap: f32) -> f32 {
  if (cap == 0.0 || (bitcast<u32>(y) & 0x7fffffffu) > 0x7f800000u) { return y; }
  return cap * tanh(clamp(y / cap, -15.0, 15.0));
}
