// Weights of 16 bits, two to a word, as they are; `four(pair)` makes floats of two words.
//
//   codes [N, K/32, 4]  vec4<u32>   four words of eight weights

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;

struct Raw {
  a: vec4<u32>,
  b: vec4<u32>,
  c: vec4<u32>,
  d: vec4<u32>,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = (row * row_blocks() + block) * 4u;
  return Raw(codes[at], codes[at + 1u], codes[at + 2u], codes[at + 3u]);
}

fn decode(raw: Raw) -> Block {
  return Block(
    four(raw.a.xy), four(raw.a.zw), four(raw.b.xy), four(raw.b.zw),
    four(raw.c.xy), four(raw.c.zw), four(raw.d.xy), four(raw.d.zw),
  );
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return dot_block(decode(raw), x);
}
