// Weights in Q5_K: w = d · scale · code − dmin · min, five-bit codes, scale and min per 32, d and dmin per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, nibbles.wgsl
//   scales [N, K/256, 13]  u32         d, dmin as f16; four words of (scale, min) bytes; the high bits of each sub-block

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
  let super_block = (at >> 3u) * 13u;
  let pair = scales[super_block + 1u + ((at & 7u) >> 1u)] >> ((at & 1u) * 16u);
  let dm = unpack2x16float(scales[super_block]) * vec2<f32>(f32(pair & 0xffu), -f32((pair >> 8u) & 0xffu));
  return Raw(codes[at], scales[super_block + 5u + (at & 7u)], dm);
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
