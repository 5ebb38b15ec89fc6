// Weights in Q6_K: w = d · scale · (code − 32), six-bit codes, a signed scale per 16, d per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, nibbles.wgsl
//   scales [N, K/256, 21]  u32         d as f32; four words of sixteen scales; two words of high bits per sub-block,
//                                      element i in bits 2(i % 16) of word i / 16

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  high: vec2<u32>,
  d: vec2<f32>,  // d · scale of the first and of the last sixteen
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * params.blocks + block;
  let super_block = (at >> 3u) * 21u;
  let sub = at & 7u;
  let pair = vec2<f32>(unpack4xI8(scales[super_block + 1u + (sub >> 1u)] >> ((sub & 1u) * 16u)).xy);
  let high = vec2<u32>(scales[super_block + 5u + 2u * sub], scales[super_block + 6u + 2u * sub]);
  return Raw(codes[at], high, bitcast<f32>(scales[super_block]) * pair);
}

// The high bits of four elements, in place above their nibbles.
fn upper(bits: u32) -> vec4<u32> {
  return ((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)) << vec4<u32>(4u);
}

fn unscaled(raw: Raw) -> Block {
  let q = raw.q;
  let h = raw.high.x;
  let g = raw.high.y;
  return Block(
    floats(low_nibbles(q.x) | upper(h), 32.0), floats(high_nibbles(q.x) | upper(h >> 8u), 32.0),
    floats(low_nibbles(q.y) | upper(h >> 16u), 32.0), floats(high_nibbles(q.y) | upper(h >> 24u), 32.0),
    floats(low_nibbles(q.z) | upper(g), 32.0), floats(high_nibbles(q.z) | upper(g >> 8u), 32.0),
    floats(low_nibbles(q.w) | upper(g >> 16u), 32.0), floats(high_nibbles(q.w) | upper(g >> 24u), 32.0),
  );
}

fn decode(raw: Raw) -> Block {
  let w = unscaled(raw);
  let a = raw.d.x;
  let b = raw.d.y;
  return Block(a * w.a, a * w.b, a * w.c, a * w.d, b * w.e, b * w.f, b * w.g, b * w.h);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  let w = unscaled(raw);
  return raw.d.x * (dot(w.a, x.a) + dot(w.b, x.b) + dot(w.c, x.c) + dot(w.d, x.d))
    + raw.d.y * (dot(w.e, x.e) + dot(w.f, x.f) + dot(w.g, x.g) + dot(w.h, x.h));
}
