// Weights that are scale · number, with one scale per 32: scale_of(raw) and unscaled(raw) give both.

fn decode(raw: Raw) -> Block {
  let w = unscaled(raw);
  let d = scale_of(raw);
  return Block(d * w.a, d * w.b, d * w.c, d * w.d, d * w.e, d * w.f, d * w.g, d * w.h);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return scale_of(raw) * dot_block(unscaled(raw), x);
}

//#if QUICK
//#include two_tails
fn tails_of(raw: Raw) -> Tails {
  return Tails(scale_of(raw), 0.0);
}
//#endif
