// 32 four-bit codes whose scale is UNIT · d · (byte − ZERO): eight blocks have three words, d and their bytes. A byte
// becomes a float as in codes.wgsl.

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  d: u32,
  bytes: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let first = (at >> 3u) * 3u;
  return Raw(codes[at], scales[first], scales[first + 1u + ((at >> 2u) & 1u)], (at & 3u) * 8u);
}

fn scale_of(raw: Raw) -> f32 {
  let step = bitcast<f32>(((raw.bytes >> raw.shift) & 255u) | 0x4b000000u) - (8388608.0 + ZERO);
  return bitcast<f32>(raw.d) * (UNIT * step);
}
