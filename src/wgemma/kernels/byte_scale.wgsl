// 32 four-bit codes whose scale is UNIT · d · (byte − ZERO): a word has d, as f16, and the bytes of two neighbouring
// blocks. A byte becomes a float as in codes.wgsl.

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
  let step = bitcast<f32>(((raw.word >> raw.shift) & 255u) | 0x4b000000u) - (8388608.0 + ZERO);
  return unpack2x16float(raw.word).x * (UNIT * step);
}
