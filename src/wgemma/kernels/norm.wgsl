// x[r] and the residual stream behind it, for many rows at once (see residual.wgsl). One workgroup per row.
//
//   x [R, K] f32
//   ROUNDS: and the same as bytes, as to_bytes.wgsl makes them, with FINE or without; needs SUBGROUPS
//
// Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  scale: f32,
  eps: f32,
//#if PARTS
  o_parts: u32,
  o_step: u32,  // vectors of four from one part to the next
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(7) var<storage, read_write> x: array<vec4<f32>>;
//#include blocks
//#include reduce
//#include residual

//#if ROUNDS
@group(0) @binding(9) var<storage, read_write> bytes: array<u32>;
//#if FINE
const LARGEST = 32639.0;  // 127 · 256 + 127
const WORDS = 20u;
//#else
const LARGEST = 127.0;
const WORDS = 12u;
//#endif

// Elements 8i … 8i + 7 of all rows; four threads have a block's.
fn put_bytes(i: u32, near: vec4<f32>, far: vec4<f32>, there: bool) {
  // Sizes in the order of their bits, where NaN is larger than all.
  let sizes = max(bitcast<vec4<u32>>(near) & vec4<u32>(0x7fffffffu), bitcast<vec4<u32>>(far) & vec4<u32>(0x7fffffffu));
  var size = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
  size = max(size, subgroupShuffleXor(size, 1u));
  size = max(size, subgroupShuffleXor(size, 2u));
  let most = bitcast<f32>(size);
  let scale = most / LARGEST;
  let shrink = select(LARGEST / most, 0.0, size == 0u);
  var low = vec4<i32>(round(near * shrink));
  var high = vec4<i32>(round(far * shrink));
  let both = low + high;
  var sum = (both.x + both.y) + (both.z + both.w);
  sum += subgroupShuffleXor(sum, 1u);
  if (!there) { return; }
  let first = i / 4u * WORDS;
  let j = i % 4u;
//#if FINE
  bytes[first + 12u + 2u * j] = pack4xI8(low);
  bytes[first + 13u + 2u * j] = pack4xI8(high);
  low = (low + 128) >> vec4<u32>(8u);
  high = (high + 128) >> vec4<u32>(8u);
//#endif
  bytes[first + 2u * j] = pack4xI8(low);
  bytes[first + 2u * j + 1u] = pack4xI8(high);
  if (j == 0u) { bytes[first + 8u] = bitcast<u32>(scale); }
  if (j % 2u == 0u) { bytes[first + 9u + j / 2u] = bitcast<u32>(scale * f32(sum)); }
}
//#endif

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  prepare(group.x, me, true);
  let quads = params.blocks * 8u;
//#for j in PAIRS
  let i{{j}} = 2u * (thread + {{j}}u * {{THREADS}}u);
  if (i{{j}} < quads) {
    x[group.x * quads + i{{j}}] = near{{j}};
    x[group.x * quads + i{{j}} + 1u] = far{{j}};
  }
//#if ROUNDS
  put_bytes(group.x * quads / 2u + i{{j}} / 2u, near{{j}}, far{{j}}, i{{j}} < quads);
//#endif
//#endfor
}
