// Weights in Q5_0: w = d · (code − 16), and Q5_1: w = d · code + m; five-bit codes, one scale per 32.
//
//   codes  [N, K/32]     vec4<u32>   the low four bits, nibbles.wgsl
//   scales [N, K/32, 2]  u32         the 32 high bits, element i in bit i; d (low) and m (high) as f16

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  high: u32,
  dm: vec2<f32>,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * params.blocks + block;
  return Raw(codes[at], scales[2u * at], unpack2x16float(scales[2u * at + 1u]));
}

// The high bits of four elements, in place above their nibbles.
fn fifth(bits: u32) -> vec4<u32> {
  return ((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(4u);
}

fn unscaled(raw: Raw) -> Block {
  let q = raw.q;
  let h = raw.high;
  return Block(
    floats(low_nibbles(q.x) | fifth(h), 0.0), floats(high_nibbles(q.x) | fifth(h >> 4u), 0.0),
    floats(low_nibbles(q.y) | fifth(h >> 8u), 0.0), floats(high_nibbles(q.y) | fifth(h >> 12u), 0.0),
    floats(low_nibbles(q.z) | fifth(h >> 16u), 0.0), floats(high_nibbles(q.z) | fifth(h >> 20u), 0.0),
    floats(low_nibbles(q.w) | fifth(h >> 24u), 0.0), floats(high_nibbles(q.w) | fifth(h >> 28u), 0.0),
  );
}

fn decode(raw: Raw) -> Block {
  let w = unscaled(raw);
  let d = raw.dm.x;
  let m = raw.dm.y;
  return Block(d * w.a + m, d * w.b + m, d * w.c + m, d * w.d + m, d * w.e + m, d * w.f + m, d * w.g + m, d * w.h + m);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return raw.dm.x * dot_block(unscaled(raw), x) + raw.dm.y * sum;
}
