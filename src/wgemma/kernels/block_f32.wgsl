// Weights in F32: element k of row n as it is.
//
//   codes [N, K/32, 8]  vec4<u32>   eight words of four floats

@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;

fn load32(row: u32, block: u32) -> Block {
  let at = (row * params.blocks + block) * 8u;
  return Block(
    bitcast<vec4<f32>>(codes[at]), bitcast<vec4<f32>>(codes[at + 1u]),
    bitcast<vec4<f32>>(codes[at + 2u]), bitcast<vec4<f32>>(codes[at + 3u]),
    bitcast<vec4<f32>>(codes[at + 4u]), bitcast<vec4<f32>>(codes[at + 5u]),
    bitcast<vec4<f32>>(codes[at + 6u]), bitcast<vec4<f32>>(codes[at + 7u]),
  );
}
