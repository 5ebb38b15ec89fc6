// Weights in Q5_K: w = d · scale · code − dmin · min, five-bit codes, scale and min per 32, d and dmin per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, nibbles.wgsl
//   scales [N, K/256, 13]  u32         d, dmin as f16; four words of (scale, min) bytes; the high bits of each sub-block

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

fn fifth(bits: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) * 16.0;
}

fn load32(row: u32, block: u32) -> Block {
  let at = row * params.blocks + block;
  let q = codes[at];
  let super_block = (at >> 3u) * 13u;
  let pair = scales[super_block + 1u + ((at & 7u) >> 1u)] >> ((at & 1u) * 16u);
  let high = scales[super_block + 5u + (at & 7u)];
  let dm = unpack2x16float(scales[super_block]);
  let d = dm.x * f32(pair & 0xffu);
  let m = -dm.y * f32((pair >> 8u) & 0xffu);
  return Block(
    d * (low_nibbles(q.x) + fifth(high)) + m, d * (high_nibbles(q.x) + fifth(high >> 4u)) + m,
    d * (low_nibbles(q.y) + fifth(high >> 8u)) + m, d * (high_nibbles(q.y) + fifth(high >> 12u)) + m,
    d * (low_nibbles(q.z) + fifth(high >> 16u)) + m, d * (high_nibbles(q.z) + fifth(high >> 20u)) + m,
    d * (low_nibbles(q.w) + fifth(high >> 24u)) + m, d * (high_nibbles(q.w) + fifth(high >> 28u)) + m,
  );
}
