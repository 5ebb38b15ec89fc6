// 32 codes as planes of bits: bit 8j + i of plane p is bit p of element 4i + j. Types with uneven levels compute the bits
// of all 32 levels at once from those of their codes, which is cheaper than looking each one up. Codes is codes.wgsl's.

// Planes 0–3 and 4–7 → the bytes they stand for: in every byte, rows of bits become columns.
fn gathered(planes: Codes) -> Codes {
  let a = traded(planes, 4u, 0x0f0f0f0fu);
  let b = traded(Codes(vec4<u32>(a.low.xy, a.high.xy), vec4<u32>(a.low.zw, a.high.zw)), 2u, 0x33333333u);
  let c = traded(
    Codes(vec4<u32>(b.low.x, b.high.x, b.low.z, b.high.z), vec4<u32>(b.low.y, b.high.y, b.low.w, b.high.w)),
    1u, 0x55555555u,
  );
  return Codes(vec4<u32>(c.low.x, c.high.x, c.low.y, c.high.y), vec4<u32>(c.low.z, c.high.z, c.low.w, c.high.w));
}

// Swaps the bits of `low` outside `mask` with those of `high` inside it, `by` lower. b ^ ((a ^ b) & mask) is a where the
// mask is set and b elsewhere, in one instruction of three operands; with and, or and the mask's complement it takes two.
fn traded(c: Codes, by: u32, mask: u32) -> Codes {
  let here = vec4<u32>(mask);
  let up = c.high << vec4<u32>(by);
  let down = c.low >> vec4<u32>(by);
  return Codes(up ^ ((c.low ^ up) & here), c.high ^ ((down ^ c.high) & here));
}
