// Five-bit codes: raw.q has the low four bits (nibbles.wgsl), bit i of raw.high the fifth of element i.

// The high bits of four elements, in place above their nibbles.
fn fifth(bits: u32) -> vec4<u32> {
  return ((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(4u);
}

fn unscaled(raw: Raw) -> Block {
  let q = raw.q;
  let h = raw.high;
  return Block(
    floats(low_nibbles(q.x) | fifth(h), 0.0), floats(high_nibbles(q.x) | fifth(h >> 4u), 0.0),
    floats(low_nibbles(q.y) | fifth(h >> 8u), 0.0), floats(high_nibbles(q.y) | fifth(h >> 12u), 0.0),
    floats(low_nibbles(q.z) | fifth(h >> 16u), 0.0), floats(high_nibbles(q.z) | fifth(h >> 20u), 0.0),
    floats(low_nibbles(q.w) | fifth(h >> 24u), 0.0), floats(high_nibbles(q.w) | fifth(h >> 28u), 0.0),
  );
}
