// The usual tails: a scale and an offset, or two scales.

alias Tails = vec2<f32>;

fn as_four(tails: Tails) -> vec4<f32> {
  return vec4<f32>(tails, 0.0, 0.0);
}

fn from_four(four: vec4<f32>) -> Tails {
  return four.xy;
}
