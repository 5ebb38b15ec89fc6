// Weights that are scale · (code − OFFSET), with one scale per 32: scale_of(raw) gives it, codes_of(raw) the codes.

//#include one_scale

fn unscaled(raw: Raw) -> Block {
  return numbers(codes_of(raw), OFFSET);
}

//#if QUICK
fn bytes_of(raw: Raw) -> Codes {
  return codes_of(raw);
}

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return tails.x * (scale * f32(both.x + both.y) - OFFSET * (sums.x + sums.y));
}
//#endif
