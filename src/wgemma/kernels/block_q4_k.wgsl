// Weights in Q4_K: w = d · scale · code − dmin · min, with a six-bit scale and min per 32 and d, dmin per 256.
//
//   codes  [N, K/32]      vec4<u32>   nibbles.wgsl
//   scales [N, K/256, 5]  u32         d (low) and dmin (high) as f16; then (scale, min) bytes of sub-blocks 2i, 2i + 1

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  dm: vec2<f32>,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * params.blocks + block;
  let super_block = (at >> 3u) * 5u;
  let pair = scales[super_block + 1u + ((at & 7u) >> 1u)] >> ((at & 1u) * 16u);
  let dm = unpack2x16float(scales[super_block]) * vec2<f32>(f32(pair & 0xffu), -f32((pair >> 8u) & 0xffu));
  return Raw(codes[at], dm);
}

fn unscaled(raw: Raw) -> Block {
  let q = raw.q;
  return Block(
    floats(low_nibbles(q.x), 0.0), floats(high_nibbles(q.x), 0.0), floats(low_nibbles(q.y), 0.0),
    floats(high_nibbles(q.y), 0.0), floats(low_nibbles(q.z), 0.0), floats(high_nibbles(q.z), 0.0),
    floats(low_nibbles(q.w), 0.0), floats(high_nibbles(q.w), 0.0),
  );
}

//#include affine
