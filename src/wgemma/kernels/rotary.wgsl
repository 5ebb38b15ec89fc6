// Rotary positions from two small tables, exact at any depth: with t = 256a + b the angle of pair j is the sum of the
// angles of 256a and of b, and (cos, sin) of a sum needs no trigonometry. Pairs from {{PAIRS}} on do not turn.
//
//   turns [256 + depths, PAIRS]  vec2<f32>   (cos, sin) at b = 0 … 255, then at 256a for a = 0, 1, …

fn rotate(low: f32, high: f32, pair: u32, position: u32) -> vec2<f32> {
  // No branch: what is loaded here shall not wait for what was loaded before.
  let place = min(pair, {{PAIRS}}u - 1u);
  let near = turns[((position & 255u) * {{PAIRS}}u) + place];
  let far = turns[((256u + (position >> 8u)) * {{PAIRS}}u) + place];
  let cosine = far.x * near.x - far.y * near.y;
  let sine = far.y * near.x + far.x * near.y;
  let turned = vec2<f32>(low * cosine - high * sine, high * cosine + low * sine);
  return select(turned, vec2<f32>(low, high), pair >= {{PAIRS}}u);
}
