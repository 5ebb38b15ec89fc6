// The sum of what a row's experts gave, four columns of it.

fn routed4(r: u32, i: u32) -> vec4<f32> {
  let quads = params.blocks * 8u;
  var sum = vec4<f32>();
  for (var slot = 0u; slot < params.slots; slot++) { sum += routed[(r * params.slots + slot) * quads + i]; }
  return sum;
}
