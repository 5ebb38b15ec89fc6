// Weights in Q3_K: w = d · scale · (code − 4), three-bit codes, a signed scale per 16, d per 256.
//
//   codes  [N, K/32]       vec2<u32>   the low two bits, two_bits.wgsl
//   scales [N, K/256, 13]  u32         d as f32; four words of sixteen scales; a word of high bits per sub-block: that of
//                                      element 4i + j in bit 8j + i

//#include codes
//#include two_bits
@group(0) @binding(1) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
const OFFSET = 4.0;

struct Raw {
  q: vec2<u32>,
  high: u32,
  d: u32,
  pairs: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let first = (at >> 3u) * 13u;
  let sub = at & 7u;
  return Raw(codes[at], scales[first + 5u + sub], scales[first], scales[first + 1u + (sub >> 1u)], (at & 1u) * 16u);
}

fn scales_of(raw: Raw) -> vec2<f32> {
  return bitcast<f32>(raw.d) * vec2<f32>(unpack4xI8(raw.pairs >> raw.shift).xy);
}

// The high bits of sixteen elements, in place above the others.
fn upper(bits: u32) -> vec4<u32> {
  return ((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x01010101u)) << vec4<u32>(2u);
}

fn codes_of(raw: Raw) -> Codes {
  return Codes(pairs_of_bits(raw.q.x) | upper(raw.high), pairs_of_bits(raw.q.y) | upper(raw.high >> 4u));
}

//#include sixteens
