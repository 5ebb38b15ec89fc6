// Weights in F16, two to a word, as they are.
//
//   codes [N, K/32, 4]  vec4<u32>   four words of eight halves

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;

fn halves(a: u32, b: u32) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(a), unpack2x16float(b));
}

fn load32(row: u32, block: u32) -> Block {
  let at = (row * params.blocks + block) * 4u;
  let a = codes[at];
  let b = codes[at + 1u];
  let c = codes[at + 2u];
  let d = codes[at + 3u];
  return Block(
    halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w),
    halves(c.x, c.y), halves(c.z, c.w), halves(d.x, d.y), halves(d.z, d.w),
  );
}
