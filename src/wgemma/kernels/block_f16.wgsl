// Weights in F16, two to a word, as they are.
//
//   codes [N, K/32, 4]  vec4<u32>   four words of eight halves

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

fn halves(pair: vec2<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

fn decode(raw: Raw) -> Block {
  return Block(
    halves(raw.a.xy), halves(raw.a.zw), halves(raw.b.xy), halves(raw.b.zw),
    halves(raw.c.xy), halves(raw.c.zw), halves(raw.d.xy), halves(raw.d.zw),
  );
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return dot_block(decode(raw), x);
}
