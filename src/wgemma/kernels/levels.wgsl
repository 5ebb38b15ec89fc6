// Weights that are scale · level[code]: sixteen uneven levels, signed bytes, four to a word of LEVELS; scale_of(raw) gives
// the scale. Kernels that read many weights look the levels up in workgroup memory (held_levels.wgsl), others here
// (own_levels.wgsl).

//#include one_scale

fn level(code: u32) -> i32 {
  return extractBits(bitcast<i32>(LEVELS[code >> 2u]), 8u * (code & 3u), 8u);
}

fn four_levels(codes: u32) -> vec4<f32> {
  let c = (vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u);
  return vec4<f32>(level_number(c.x), level_number(c.y), level_number(c.z), level_number(c.w));
}

fn unscaled(raw: Raw) -> Block {
  let c = nibbles(raw.q);
  return Block(
    four_levels(c.low.x), four_levels(c.low.y), four_levels(c.low.z), four_levels(c.low.w),
    four_levels(c.high.x), four_levels(c.high.y), four_levels(c.high.z), four_levels(c.high.w),
  );
}

//#if QUICK
fn bytes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  return Codes(
    vec4<u32>(level_bytes(c.low.x), level_bytes(c.low.y), level_bytes(c.low.z), level_bytes(c.low.w)),
    vec4<u32>(level_bytes(c.high.x), level_bytes(c.high.y), level_bytes(c.high.z), level_bytes(c.high.w)),
  );
}

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return tails.x * (scale * f32(both.x + both.y));
}
//#endif
