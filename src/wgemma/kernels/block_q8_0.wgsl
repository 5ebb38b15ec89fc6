// Weights in Q8_0: w = d · code, signed bytes, one d per 32.
//
//   codes  [N, K/32, 2]   vec4<u32>   32 bytes in order
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  low: vec4<u32>,
  high: vec4<u32>,
  d: f32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * params.blocks + block;
  return Raw(codes[2u * at], codes[2u * at + 1u], unpack2x16float(scales[at >> 1u])[at & 1u]);
}

// Four signed bytes: flipping the sign bit makes them unsigned, 128 higher.
fn bytes(part: u32) -> vec4<f32> {
  let flipped = vec4<u32>(part ^ 0x80808080u);
  return floats((flipped >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u), 128.0);
}

fn unscaled(raw: Raw) -> Block {
  return Block(
    bytes(raw.low.x), bytes(raw.low.y), bytes(raw.low.z), bytes(raw.low.w),
    bytes(raw.high.x), bytes(raw.high.y), bytes(raw.high.z), bytes(raw.high.w),
  );
}

fn decode(raw: Raw) -> Block {
  let w = unscaled(raw);
  return Block(raw.d * w.a, raw.d * w.b, raw.d * w.c, raw.d * w.d, raw.d * w.e, raw.d * w.f, raw.d * w.g, raw.d * w.h);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return raw.d * dot_block(unscaled(raw), x);
}
