// The product of weights that are a scale times a signed byte.

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return tails.x * (scale * f32(both.x + both.y));
}
