// 32 four-bit codes whose scale is UNIT · d · a signed byte: a word has d, as f16, and the bytes of two neighbouring
// blocks.

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  word: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  return Raw(codes[at], scales[at >> 1u], 16u + (at & 1u) * 8u);
}

fn scale_of(raw: Raw) -> f32 {
  return unpack2x16float(raw.word).x * (UNIT * f32(extractBits(bitcast<i32>(raw.word), raw.shift, 8u)));
}
