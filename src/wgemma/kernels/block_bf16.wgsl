// Weights in BF16: the upper halves of floats, two to a word; the layout and the reading are in sixteen_bits.wgsl.

//#include sixteen_bits

fn four(pair: vec2<u32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
}
