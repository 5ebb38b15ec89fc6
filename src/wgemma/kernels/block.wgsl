// 32 consecutive weights of one row, as eight vectors of four. `load32(row, block)` of the block_*.wgsl files makes it;
// `params.blocks` is K / 32.

struct Block {
  a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>,
  e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32>,
}

//#include block_{{TYPE}}
