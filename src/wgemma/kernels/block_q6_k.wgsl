// Weights in Q6_K: w = d · scale · (code − 32), six-bit codes, a signed scale per 16, d per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, codes.wgsl
//   scales [N, K/256, 21]  u32         d as f32; four words of sixteen scales; two words of high bits per sub-block: those
//                                      of element 16i + 4k + j in bits 8j + 2k of word i

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

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

// The high bits of four elements each, in place above their nibbles.
fn upper(bits: u32) -> vec4<u32> {
  return ((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
}

fn codes_of(raw: Raw) -> Codes {
  let c = nibbles(raw.q);
  return Codes(c.low | upper(raw.high.x), c.high | upper(raw.high.y));
}

fn decode(raw: Raw) -> Block {
  let w = numbers(codes_of(raw), 32.0);
  let d = scales_of(raw);
  return Block(d.x * w.a, d.x * w.b, d.x * w.c, d.x * w.d, d.y * w.e, d.y * w.f, d.y * w.g, d.y * w.h);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  let w = numbers(codes_of(raw), 32.0);
  let d = scales_of(raw);
  return d.x * (dot(w.a, x.a) + dot(w.b, x.b) + dot(w.c, x.c) + dot(w.d, x.d))
    + d.y * (dot(w.e, x.e) + dot(w.f, x.f) + dot(w.g, x.g) + dot(w.h, x.h));
}

//#if QUICK
fn bytes_of(raw: Raw) -> Codes {
  return codes_of(raw);
}

fn tails_of(raw: Raw) -> vec2<f32> {
  return scales_of(raw);
}

fn weighed(tails: vec2<f32>, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return dot(tails, scale * vec2<f32>(both) - 32.0 * sums);
}
//#endif
