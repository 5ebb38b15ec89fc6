// Weights in F16: two to a word, as they are; the layout and the reading are in sixteen_bits.wgsl.

//#include sixteen_bits

fn four(pair: vec2<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}
