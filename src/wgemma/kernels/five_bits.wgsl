// Five-bit codes: raw.q has the low four bits (codes.wgsl), bit i of raw.high the fifth of element i.

// Four bits of each number, each to the place above a nibble in its byte.
fn spread(bits: vec4<u32>) -> vec4<u32> {
  return (((bits & vec4<u32>(15u)) * vec4<u32>(0x204081u)) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
}

fn codes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  let high = vec4<u32>(raw.high);
  return Codes(
    c.low | spread(high >> vec4<u32>(0u, 4u, 8u, 12u)),
    c.high | spread(high >> vec4<u32>(16u, 20u, 24u, 28u)),
  );
}
