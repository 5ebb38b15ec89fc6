// One pass of a bicubic resize with antialiasing, along a row (or, VERTICAL, down a column), in whole numbers:
//
//   y[o] = (Σ_k w[o, k] · x[first[o] + k] + 2^(bits − 1)) >> bits, in 0 … 255
//
//   taps [size, 2 + longest] i32   for every o: first[o], how many there are, and their w (see model/picture.py)
//   x [there or lines, …] u32      RGBA, a byte each: elements first … first + there of the whole axis; the other axis is whole
//   y [lines, size] u32            RGB and a full alpha; VERTICAL: only rows o from `begin` to `begin + count`
//
// The first pass lays the image on white: colour · alpha + 255 · (255 − alpha), over 255 and rounded; alpha is full after it.
//
// One thread per pixel of y; VERTICAL swaps what x and y of the grid mean. Grid: (columns of y / 64, its rows), the rows
// in steps of the grid. Limits: Σ_k |w[o, k]| · 255 < 2³¹.

struct Params {
  size: u32,
  longest: u32,
  bits: u32,
  first: u32,
  there: u32,
  lines: u32,
//#if VERTICAL
  begin: u32,
  count: u32,
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> taps: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

fn on_white(pixel: u32) -> vec3<i32> {
  let alpha = pixel >> 24u;
  let colour = vec3<u32>(pixel & 255u, (pixel >> 8u) & 255u, (pixel >> 16u) & 255u);
  return vec3<i32>((colour * alpha + vec3<u32>(255u * (255u - alpha) + 127u)) / vec3<u32>(255u));
}

fn resampled(o: u32, start: u32, step: u32) -> u32 {
  let row = o * (2u + params.longest);
  let nearest = start + (u32(taps[row]) - params.first) * step;
  let count = u32(taps[row + 1u]);
  var sum = vec3<i32>(1 << (params.bits - 1u));
  for (var k = 0u; k < count; k++) {
    sum += taps[row + 2u + k] * on_white(x[nearest + k * step]);
  }
  let value = vec3<u32>(clamp(sum >> vec3<u32>(params.bits), vec3<i32>(0), vec3<i32>(255)));
  return value.x | (value.y << 8u) | (value.z << 16u) | 0xff000000u;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
//#if VERTICAL
  if (id.x >= params.lines) { return; }
  for (var row = id.y; row < params.count; row += groups.y) {
    y[(params.begin + row) * params.lines + id.x] = resampled(params.begin + row, id.x, params.lines);
  }
//#else
  if (id.x >= params.size) { return; }
  for (var row = id.y; row < params.lines; row += groups.y) {
    y[row * params.size + id.x] = resampled(id.x, row * params.there, 1u);
  }
//#endif
}
