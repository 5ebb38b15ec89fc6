// gelu(x) = ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))). The argument is clamped: some drivers' tanh gives NaN beyond.

fn gelu(x: f32) -> f32 {
  return 0.5 * x * (1.0 + tanh(clamp(0.7978845608 * (x + 0.044715 * x * x * x), -15.0, 15.0)));
}
