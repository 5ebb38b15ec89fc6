// Two neighbouring blocks share a word of the scale plane and two threads may write it at once: each sets its own bits.

fn put_half(goal: u32, bits: u32) {
  atomicOr(&scales[goal >> 1u], bits << ((goal & 1u) * 16u));
}
