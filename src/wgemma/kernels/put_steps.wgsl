// The scales of byte_scale.wgsl, for sub-block s of the super-block from `at` on, which begins with d: step_of(at, s) is
// the byte. One thread writes the word of two sub-blocks.

fn put_steps(goal: u32, at: u32, s: u32) {
  if ((s & 1u) == 1u) { return; }
  scales[goal >> 1u] = half_word(at) | (step_of(at, s) << 16u) | (step_of(at, s + 1u) << 24u);
}
