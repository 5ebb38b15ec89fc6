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

//#include five_bits
//#include affine
