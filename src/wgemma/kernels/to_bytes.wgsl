// Many rows as tile_bytes.wgsl takes them: blocks of 32 numbers become bytes with a scale, as matvec.wgsl rounds them.
//
//   x [R, K] f32
//   bytes [R, K / 32, 3] vec4<u32>   the bytes in order; then as f32 the scale, the sum of the first sixteen, of the last
//
// One thread per block. Grid: (R · K / 32 / 64, 1), rounded up, or as many in several rows.

struct Params {
  blocks: u32,  // R · K / 32
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> bytes: array<vec4<u32>>;

const ONES = 0x01010101u;

// The sum of sixteen signed bytes.
fn sum_of(words: vec4<u32>) -> f32 {
  return f32(
    dot4I8Packed(words.x, ONES) + dot4I8Packed(words.y, ONES) + dot4I8Packed(words.z, ONES) + dot4I8Packed(words.w, ONES)
  );
}

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let block = (group.y * groups.x + group.x) * 64u + thread;
  if (block >= params.blocks) { return; }
  // Sizes in the order of their bits, where NaN is larger than all.
  var sizes = vec4<u32>();
//#for i in 8
  let x{{i}} = x[block * 8u + {{i}}u];
  sizes = max(sizes, bitcast<vec4<u32>>(x{{i}}) & vec4<u32>(0x7fffffffu));
//#endfor
  let size = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
  let most = bitcast<f32>(size);
  let scale = most / 127.0;
  let shrink = select(127.0 / most, 0.0, size == 0u);
//#for i in 8
  let word{{i}} = pack4xI8(vec4<i32>(round(x{{i}} * shrink)));
//#endfor
  let low = vec4<u32>(word0, word1, word2, word3);
  let high = vec4<u32>(word4, word5, word6, word7);
  bytes[block * 3u] = low;
  bytes[block * 3u + 1u] = high;
  bytes[block * 3u + 2u] = bitcast<vec4<u32>>(vec4<f32>(scale, scale * sum_of(low), scale * sum_of(high), 0.0));
}
