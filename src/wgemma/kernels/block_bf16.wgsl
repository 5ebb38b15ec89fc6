// Weights in BF16, two to a word: the upper halves of floats.
//
//   codes [N, K/32, 4]  vec4<u32>   four words of eight brain floats

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;

struct Raw {
  a: vec4<u32>,
  b: vec4<u32>,
  c: vec4<u32>,
  d: vec4<u32>,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = (row * params.blocks + block) * 4u;
  return Raw(codes[at], codes[at + 1u], codes[at + 2u], codes[at + 3u]);
}

fn brains(pair: vec2<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
}

fn decode(raw: Raw) -> Block {
  return Block(
    brains(raw.a.xy), brains(raw.a.zw), brains(raw.b.xy), brains(raw.b.zw),
    brains(raw.c.xy), brains(raw.c.zw), brains(raw.d.xy), brains(raw.d.zw),
  );
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return dot_block(decode(raw), x);
}
