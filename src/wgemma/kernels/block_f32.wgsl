// Weights in F32: element k of row n as it is.
//
//   codes [N, K/32, 8]  vec4<u32>   eight words of four floats

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;

struct Raw {
  a: vec4<u32>,
  b: vec4<u32>,
  c: vec4<u32>,
  d: vec4<u32>,
  e: vec4<u32>,
  f: vec4<u32>,
  g: vec4<u32>,
  h: vec4<u32>,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = (row * row_blocks() + block) * 8u;
  return Raw(
    codes[at], codes[at + 1u], codes[at + 2u], codes[at + 3u],
    codes[at + 4u], codes[at + 5u], codes[at + 6u], codes[at + 7u],
  );
}

fn decode(raw: Raw) -> Block {
  return Block(
    bitcast<vec4<f32>>(raw.a), bitcast<vec4<f32>>(raw.b), bitcast<vec4<f32>>(raw.c), bitcast<vec4<f32>>(raw.d),
    bitcast<vec4<f32>>(raw.e), bitcast<vec4<f32>>(raw.f), bitcast<vec4<f32>>(raw.g), bitcast<vec4<f32>>(raw.h),
  );
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return dot_block(decode(raw), x);
}
