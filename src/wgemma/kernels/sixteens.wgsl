// Weights that are scale · (code − OFFSET), with a scale per 16: scales_of(raw) gives those of the first and of the last
// sixteen, codes_of(raw) the codes.

fn decode(raw: Raw) -> Block {
  let w = numbers(codes_of(raw), OFFSET);
  let d = scales_of(raw);
  return Block(d.x * w.a, d.x * w.b, d.x * w.c, d.x * w.d, d.y * w.e, d.y * w.f, d.y * w.g, d.y * w.h);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  let w = numbers(codes_of(raw), OFFSET);
  let d = scales_of(raw);
  return d.x * (dot(w.a, x.a) + dot(w.b, x.b) + dot(w.c, x.c) + dot(w.d, x.d))
    + d.y * (dot(w.e, x.e) + dot(w.f, x.f) + dot(w.g, x.g) + dot(w.h, x.h));
}

//#if QUICK
//#include two_tails
fn bytes_of(raw: Raw) -> Codes {
  return codes_of(raw);
}

fn tails_of(raw: Raw) -> Tails {
  return scales_of(raw);
}

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return dot(tails, scale * vec2<f32>(both) - OFFSET * sums);
}
//#endif
