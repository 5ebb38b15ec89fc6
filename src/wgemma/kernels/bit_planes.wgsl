// 32 codes as planes of bits: bit 8j + i of plane p is bit p of element 4i + j. Types with uneven levels compute the bits
// of all 32 levels at once from those of their codes, which is cheaper than looking each one up. Codes is codes.wgsl's.

// Planes 0–3 and 4–7 → the bytes they stand for: in every byte, rows of bits become columns. Planes of zeros cost least
// in this order.
fn gathered(p: Codes) -> Codes {
  let a = traded(
    Codes(vec4<u32>(p.low.xz, p.high.xz), vec4<u32>(p.low.yw, p.high.yw)),
    1u, 0x55555555u,
  );
  let b = traded(
    Codes(vec4<u32>(a.low.x, a.high.x, a.low.z, a.high.z), vec4<u32>(a.low.y, a.high.y, a.low.w, a.high.w)),
    2u, 0x33333333u,
  );
  return traded(
    Codes(vec4<u32>(b.low.xy, b.high.xy), vec4<u32>(b.low.zw, b.high.zw)),
    4u, 0x0f0f0f0fu,
  );
}

// Swaps the bits of `low` outside `mask` with those of `high` inside it, `by` lower. b ^ ((a ^ b) & m) is a where m is set
// and b elsewhere, in one instruction of three operands. A compiler that knows m makes it (a & m) | (b & ~m), which takes
// two; so m is shifted by a parameter's highest bit, which is never set: no row has 2³¹ blocks.
fn traded(c: Codes, by: u32, mask: u32) -> Codes {
  let here = vec4<u32>(mask << (params.blocks >> 31u));
  let up = c.high << vec4<u32>(by);
  let down = c.low >> vec4<u32>(by);
  return Codes(up ^ ((c.low ^ up) & here), c.high ^ ((down ^ c.high) & here));
}
