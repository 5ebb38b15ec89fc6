// Weights in Q4_0: w = d · (code − 8), one d per 32.
//
//   codes  [N, K/32]      vec4<u32>   nibbles.wgsl
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  d: f32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * params.blocks + block;
  return Raw(codes[at], unpack2x16float(scales[at >> 1u])[at & 1u]);
}

fn unscaled(q: vec4<u32>) -> Block {
  return Block(
    floats(low_nibbles(q.x), 8.0), floats(high_nibbles(q.x), 8.0), floats(low_nibbles(q.y), 8.0),
    floats(high_nibbles(q.y), 8.0), floats(low_nibbles(q.z), 8.0), floats(high_nibbles(q.z), 8.0),
    floats(low_nibbles(q.w), 8.0), floats(high_nibbles(q.w), 8.0),
  );
}

fn decode(raw: Raw) -> Block {
  let w = unscaled(raw.q);
  return Block(raw.d * w.a, raw.d * w.b, raw.d * w.c, raw.d * w.d, raw.d * w.e, raw.d * w.f, raw.d * w.g, raw.d * w.h);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return raw.d * dot_block(unscaled(raw.q), x);
}
