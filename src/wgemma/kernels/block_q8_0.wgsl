// Weights in Q8_0: w = d · code, signed bytes, one d per 32.
//
//   codes  [N, K/32, 2]   vec4<u32>   32 bytes in order
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

fn bytes(part: u32) -> vec4<f32> {
  return vec4<f32>(unpack4xI8(part));
}

fn load32(row: u32, block: u32) -> Block {
  let at = row * params.blocks + block;
  let a = codes[2u * at];
  let b = codes[2u * at + 1u];
  let d = unpack2x16float(scales[at >> 1u])[at & 1u];
  return Block(
    d * bytes(a.x), d * bytes(a.y), d * bytes(a.z), d * bytes(a.w),
    d * bytes(b.x), d * bytes(b.y), d * bytes(b.z), d * bytes(b.w),
  );
}
