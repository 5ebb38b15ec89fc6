// The scales of byte_scale.wgsl, for sub-block s of the super-block from `at` on, which begins with d: step_of(at, s) is
// the byte. One thread writes the word of four sub-blocks. d is often subnormal, so it becomes an f32 here, once.

fn put_steps(goal: u32, at: u32, s: u32) {
  if ((s & 3u) != 0u) { return; }
  let first = (goal >> 3u) * 3u;
  if (s == 0u) { scales[first] = widen(half_word(at)); }
  var steps = 0u;
  for (var i = 0u; i < 4u; i++) { steps |= step_of(at, s + i) << (8u * i); }
  scales[first + 1u + (s >> 2u)] = steps;
}
