// One pass of a bicubic resize with antialiasing, along a row (or, VERTICAL, down a column):
//
//   y[o] = round(Σ_k c((k + ½ − m) / s) · x[k] / Σ_k c(…)) in 0 … 255,  m = (o + ½) · before / size,  s = max(before / size, 1)
//   c(d) = 1.5 d³ − 2.5 d² + 1 for d < 1,  −0.5 d³ + 2.5 d² − 4 d + 2 for d < 2,  0 beyond      (d without its sign)
//
//   x [there or lines, …] u32   RGBA, a byte each: elements first … first + there of the whole axis; the other axis is whole
//   y [lines, size] u32         RGB and a full alpha; VERTICAL: only rows o from `begin` to `begin + count`
//
// The first pass lays the image on white: colour · alpha + 255 · (255 − alpha), over 255 and rounded; alpha is full after it.
// The place m is kept as a whole number and a fraction, so that long axes are as exact as short ones.
//
// One thread per pixel of y; VERTICAL swaps what x and y of the grid mean. Grid: (columns of y / 64, its rows), the rows
// in steps of the grid. Limits: size² < 2³².

struct Params {
  before: u32,
  size: u32,
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
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

fn cubic(distance: f32) -> f32 {
  let d = abs(distance);
  let near = (1.5 * d - 2.5) * d * d + 1.0;
  let far = ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0;
  return select(select(0.0, far, d < 2.0), near, d < 1.0);
}

fn on_white(pixel: u32) -> vec3<f32> {
  let alpha = pixel >> 24u;
  let colour = vec3<u32>(pixel & 255u, (pixel >> 8u) & 255u, (pixel >> 16u) & 255u);
  return vec3<f32>((colour * alpha + vec3<u32>(255u * (255u - alpha) + 127u)) / vec3<u32>(255u));
}

fn resampled(o: u32, start: u32, step: u32) -> u32 {
  let size = params.size;
  let whole = params.before / size;
  let rest = params.before % size;
  let turned = o * rest;
  let base = o * whole + turned / size;  // m is base + fraction
  let fraction = f32(turned % size) / f32(size) + 0.5 * (f32(whole) + f32(rest) / f32(size));
  let wide = max(f32(params.before) / f32(size), 1.0);
  let lowest = i32(base) + i32(floor(fraction - 2.0 * wide));
  let highest = i32(base) + i32(ceil(fraction + 2.0 * wide));
  let begin = u32(max(lowest, i32(params.first)));
  let end = u32(min(highest, i32(params.first + params.there)));
  var sum = vec3<f32>();
  var total = 0.0;
  for (var k = begin; k < end; k++) {
    let weight = cubic((f32(i32(k) - i32(base)) + 0.5 - fraction) / wide);
    sum += weight * on_white(x[start + (k - params.first) * step]);
    total += weight;
  }
  let value = vec3<u32>(clamp(floor(sum / total + 0.5), vec3<f32>(0.0), vec3<f32>(255.0)));
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
