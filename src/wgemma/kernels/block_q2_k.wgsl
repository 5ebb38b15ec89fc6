// Weights in Q2_K: w = d · scale · code − dmin · min, two-bit codes, a four-bit scale and min per 16, d and dmin per 256.
//
//   codes  [N, K/32]      vec2<u32>   two_bits.wgsl
//   scales [N, K/256, 5]  u32         d (low) and dmin (high) as f16; sixteen bytes: scale in the low nibble, min in the high

//#include codes
//#include two_bits
@group(0) @binding(1) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec2<u32>,
  halves: u32,
  pairs: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  let first = (at >> 3u) * 5u;
  return Raw(codes[at], scales[first], scales[first + 1u + ((at & 7u) >> 1u)], (at & 1u) * 16u);
}

fn codes_of(raw: Raw) -> Codes {
  return Codes(pairs_of_bits(raw.q.x), pairs_of_bits(raw.q.y));
}

// d · scale of the first and of the last sixteen, then −dmin · min of both.
fn dm_of(raw: Raw) -> vec4<f32> {
  let steps = (vec4<u32>(raw.pairs >> raw.shift) >> vec4<u32>(0u, 8u, 4u, 12u)) & vec4<u32>(15u);
  let d = unpack2x16float(raw.halves);
  return vec4<f32>(steps) * vec4<f32>(d.x, d.x, -d.y, -d.y);
}

fn decode(raw: Raw) -> Block {
  let w = numbers(codes_of(raw), 0.0);
  let dm = dm_of(raw);
  return Block(
    dm.x * w.a + dm.z, dm.x * w.b + dm.z, dm.x * w.c + dm.z, dm.x * w.d + dm.z,
    dm.y * w.e + dm.w, dm.y * w.f + dm.w, dm.y * w.g + dm.w, dm.y * w.h + dm.w,
  );
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  let w = numbers(codes_of(raw), 0.0);
  let dm = dm_of(raw);
  let near = dot((x.a + x.b) + (x.c + x.d), vec4<f32>(1.0));  // the sum of the first sixteen
  return dm.x * (dot(w.a, x.a) + dot(w.b, x.b) + dot(w.c, x.c) + dot(w.d, x.d)) + dm.z * near
    + (dm.y * (dot(w.e, x.e) + dot(w.f, x.f) + dot(w.g, x.g) + dot(w.h, x.h)) + dm.w * (sum - near));
}

//#if QUICK
alias Tails = vec4<f32>;

fn as_four(tails: Tails) -> vec4<f32> {
  return tails;
}

fn from_four(four: vec4<f32>) -> Tails {
  return four;
}

fn bytes_of(raw: Raw) -> Codes {
  return codes_of(raw);
}

fn tails_of(raw: Raw) -> Tails {
  return dm_of(raw);
}

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return dot(tails, vec4<f32>(scale * vec2<f32>(both), sums));
}
//#endif
