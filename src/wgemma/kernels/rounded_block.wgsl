// Rounds a block of 32 numbers into `bytes`, as to_bytes.wgsl describes them; FINE as there.

//#if FINE
const LARGEST = 32639.0;  // 127 · 256 + 127
const PARTS = 5u;
//#else
const LARGEST = 127.0;
const PARTS = 3u;
//#endif

fn sum_of(a: vec4<i32>, b: vec4<i32>, c: vec4<i32>, d: vec4<i32>) -> f32 {
  let sums = (a + b) + (c + d);
  return f32((sums.x + sums.y) + (sums.z + sums.w));
}

fn put_block(
  block: u32, x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>,
  x4: vec4<f32>, x5: vec4<f32>, x6: vec4<f32>, x7: vec4<f32>,
) {
  // Sizes in the order of their bits, where NaN is larger than all.
  var sizes = vec4<u32>();
//#for i in 8
  sizes = max(sizes, bitcast<vec4<u32>>(x{{i}}) & vec4<u32>(0x7fffffffu));
//#endfor
  let size = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
  let most = bitcast<f32>(size);
  let scale = most / LARGEST;
  let shrink = select(LARGEST / most, 0.0, size == 0u);
//#for i in 8
  var n{{i}} = vec4<i32>(round(x{{i}} * shrink));
//#endfor
  let sums = scale * vec2<f32>(sum_of(n0, n1, n2, n3), sum_of(n4, n5, n6, n7));
  let at = block * PARTS;
  bytes[at + 2u] = bitcast<vec4<u32>>(vec4<f32>(scale, sums, 0.0));
//#if FINE
  bytes[at + 3u] = vec4<u32>(pack4xI8(n0), pack4xI8(n1), pack4xI8(n2), pack4xI8(n3));
  bytes[at + 4u] = vec4<u32>(pack4xI8(n4), pack4xI8(n5), pack4xI8(n6), pack4xI8(n7));
//#for i in 8
  n{{i}} = (n{{i}} + 128) >> vec4<u32>(8u);
//#endfor
//#endif
  bytes[at] = vec4<u32>(pack4xI8(n0), pack4xI8(n1), pack4xI8(n2), pack4xI8(n3));
  bytes[at + 1u] = vec4<u32>(pack4xI8(n4), pack4xI8(n5), pack4xI8(n6), pack4xI8(n7));
}
