// Weights in Q5_0: w = d · (code − 16), and Q5_1: w = d · code + m; five-bit codes, one scale per 32.
//
//   codes  [N, K/32]     vec4<u32>   the low four bits, nibbles.wgsl
//   scales [N, K/32, 2]  u32         the 32 high bits, element i in bit i; d (low) and m (high) as f16

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

fn fifth(bits: u32) -> vec4<f32> {
  return vec4<f32>((vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) * 16.0;
}

fn load32(row: u32, block: u32) -> Block {
  let at = row * params.blocks + block;
  let q = codes[at];
  let high = scales[2u * at];
  let dm = unpack2x16float(scales[2u * at + 1u]);
  let d = dm.x;
  let m = dm.y;
  return Block(
    d * (low_nibbles(q.x) + fifth(high)) + m, d * (high_nibbles(q.x) + fifth(high >> 4u)) + m,
    d * (low_nibbles(q.y) + fifth(high >> 8u)) + m, d * (high_nibbles(q.y) + fifth(high >> 12u)) + m,
    d * (low_nibbles(q.z) + fifth(high >> 16u)) + m, d * (high_nibbles(q.z) + fifth(high >> 20u)) + m,
    d * (low_nibbles(q.w) + fifth(high >> 24u)) + m, d * (high_nibbles(q.w) + fifth(high >> 28u)) + m,
  );
}
