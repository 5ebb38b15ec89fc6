// Weights that are d · code + m: dm_of(raw) gives both, codes_of(raw) the codes.

fn decode(raw: Raw) -> Block {
  let w = numbers(codes_of(raw), 0.0);
  let dm = dm_of(raw);
  let d = dm.x;
  let m = dm.y;
  return Block(d * w.a + m, d * w.b + m, d * w.c + m, d * w.d + m, d * w.e + m, d * w.f + m, d * w.g + m, d * w.h + m);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  let dm = dm_of(raw);
  return dm.x * dot_block(numbers(codes_of(raw), 0.0), x) + dm.y * sum;
}

//#if QUICK
//#include two_tails
fn bytes_of(raw: Raw) -> Codes {
  return codes_of(raw);
}

fn tails_of(raw: Raw) -> Tails {
  return dm_of(raw);
}

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return tails.x * (scale * f32(both.x + both.y)) + tails.y * (sums.x + sums.y);
}
//#endif
