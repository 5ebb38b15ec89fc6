// sigmoid(x) = 1 / (1 + e^−x). The exponent is clamped: some drivers' exp gives NaN where it should be infinite.

fn sigmoid(x: f32) -> f32 {
  return 1.0 / (1.0 + exp(min(-x, 80.0)));
}
