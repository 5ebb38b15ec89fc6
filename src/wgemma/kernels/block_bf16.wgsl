// Weights in BF16, two to a word: the upper halves of floats.
//
//   codes [N, K/32, 4]  vec4<u32>   four words of eight brain floats

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;

fn brains(a: u32, b: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn load32(row: u32, block: u32) -> Block {
  let at = (row * params.blocks + block) * 4u;
  let a = codes[at];
  let b = codes[at + 1u];
  let c = codes[at + 2u];
  let d = codes[at + 3u];
  return Block(
    brains(a.x, a.y), brains(a.z, a.w), brains(b.x, b.y), brains(b.z, b.w),
    brains(c.x, c.y), brains(c.z, c.w), brains(d.x, d.y), brains(d.z, d.w),
  );
}
