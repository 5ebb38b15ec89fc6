// Weights in Q6_K: w = d · scale · (code − 32), six-bit codes, a signed scale per 16, d per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, codes.wgsl
//   scales [N, K/256, 21]  u32         d as f32; four words of sixteen scales; two words of high bits per sub-block: those
//                                      of element 16i + 4k + j in bits 8j + 2k of word i

//#include codes
//#include two_bits
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
const OFFSET = 32.0;

struct Raw {
  q: vec4<u32>,
  high: vec2<u32>,
  d: u32,
  pairs: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let first = (at >> 3u) * 21u;
  let sub = at & 7u;
  let high = vec2<u32>(scales[first + 5u + 2u * sub], scales[first + 6u + 2u * sub]);
  return Raw(codes[at], high, scales[first], scales[first + 1u + (sub >> 1u)], (at & 1u) * 16u);
}

// Of the first and of the last sixteen.
fn scales_of(raw: Raw) -> vec2<f32> {
  return bitcast<f32>(raw.d) * vec2<f32>(unpack4xI8(raw.pairs >> raw.shift).xy);
}

fn codes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  return Codes(
    c.low | (pairs_of_bits(raw.high.x) << vec4<u32>(4u)),
    c.high | (pairs_of_bits(raw.high.y) << vec4<u32>(4u)),
  );
}

//#include sixteens
