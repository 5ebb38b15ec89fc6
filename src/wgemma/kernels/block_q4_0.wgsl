// Weights in Q4_0: w = d · (code − 8), one d per 32.
//
//   codes  [N, K/32]      vec4<u32>   nibbles.wgsl
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

//#include nibbles
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

fn load32(row: u32, block: u32) -> Block {
  let at = row * params.blocks + block;
  let q = codes[at];
  let d = unpack2x16float(scales[at >> 1u])[at & 1u];
  let m = -8.0 * d;
  return Block(
    d * low_nibbles(q.x) + m, d * high_nibbles(q.x) + m, d * low_nibbles(q.y) + m, d * high_nibbles(q.y) + m,
    d * low_nibbles(q.z) + m, d * high_nibbles(q.z) + m, d * low_nibbles(q.w) + m, d * high_nibbles(q.w) + m,
  );
}
