// Rows as tile_bytes.wgsl and middle.wgsl take them: blocks of 32 numbers become bytes with a scale, as matvec.wgsl rounds
// them.
//
//   x [R, K] f32
//   bytes [R, K / 32, 3] vec4<u32>   the bytes in order; then as f32 the scale, the sum of the first sixteen, of the last
//   FINE: [R, K / 32, 5], two bytes for each number: the upper ones, the f32s, then the lower ones, signed as well
//
// One thread per block. Grid: (R · K / 32 / 64, 1), rounded up, or as many in several rows.

struct Params {
  blocks: u32,  // R · K / 32
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> bytes: array<vec4<u32>>;

//#include rounded_block

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let block = (group.y * groups.x + group.x) * 64u + thread;
  if (block >= params.blocks) { return; }
//#for i in 8
  let x{{i}} = x[block * 8u + {{i}}u];
//#endfor
  put_block(block, x0, x1, x2, x3, x4, x5, x6, x7);
}
