// Weights in Q6_K: w = d · scale · (code − 32), six-bit codes, a signed scale per 16, d per 256.
//
//   codes  [N, K/32]       vec4<u32>   the low four bits, nibbles.wgsl
//   scales [N, K/256, 21]  u32         d as f32; four words of sixteen scales; two words of high bits per sub-block,
//                                      element i in bits 2(i % 16) of word i / 16

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

fn upper(bits: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 2u, 4u, 6u)) & vec4<u32>(3u)) * 16.0 - 32.0;
}

fn load32(row: u32, block: u32) -> Block {
  let at = row * params.blocks + block;
  let q = codes[at];
  let super_block = (at >> 3u) * 21u;
  let sub = at & 7u;
  let d = bitcast<f32>(scales[super_block]);
  let pair = vec2<f32>(unpack4xI8(scales[super_block + 1u + (sub >> 1u)] >> ((sub & 1u) * 16u)).xy);
  let a = d * pair.x;
  let b = d * pair.y;
  let h = scales[super_block + 5u + 2u * sub];
  let g = scales[super_block + 6u + 2u * sub];
  return Block(
    a * (low_nibbles(q.x) + upper(h)), a * (high_nibbles(q.x) + upper(h >> 8u)),
    a * (low_nibbles(q.y) + upper(h >> 16u)), a * (high_nibbles(q.y) + upper(h >> 24u)),
    b * (low_nibbles(q.z) + upper(g)), b * (high_nibbles(q.z) + upper(g >> 8u)),
    b * (low_nibbles(q.w) + upper(g >> 16u)), b * (high_nibbles(q.w) + upper(g >> 24u)),
  );
}
