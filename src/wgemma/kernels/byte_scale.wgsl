// 32 nibbles whose scale is d · a signed byte: three words for 256 weights, d as f32 and the bytes of eight sub-blocks.

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  d: u32,
  steps: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let first = (at >> 3u) * 3u;
  return Raw(codes[at], scales[first], scales[first + 1u + ((at & 7u) >> 2u)], (at & 3u) * 8u);
}

fn scale_of(raw: Raw) -> f32 {
  return bitcast<f32>(raw.d) * f32(extractBits(bitcast<i32>(raw.steps), raw.shift, 8u));
}
