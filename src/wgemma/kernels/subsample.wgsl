// y[t, f] = relu(norm ⊙ layernorm(Σ_{i, j} W[i, j] · x[2t + i − 1, 2f + j − 1])): a 3 × 3 convolution of stride 2 with
// zeros around x, then a norm over the channels of each place (mean and variance, no bias).
//
//   x    [T, F, C] f32
//   w    [3, 3, C, N] f32: time, frequency, channel in, channel out
//   norm [N] f32
//   y    [(T − 1) / 2 + 1, (F − 1) / 2 + 1, N] f32
//
// A workgroup of 64 makes {{PLACES}} neighbouring places of one t: a thread has four of them in four channels, then
// 64 / {{PLACES}} threads share the norm of one place. Grid: (F of y / PLACES rounded up, T of y).
// Limits: N % 4 == 0, N · PLACES ≤ 1024; PLACES is 4, 8, 16 or 32.

struct Params {
  rows: u32,         // T of x
  columns: u32,      // F of x
  channels: u32,     // C
  out_columns: u32,  // F of y
  out_channels: u32, // N
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

const SHARE = 64u / {{PLACES}}u;

var<workgroup> sums: array<f32, 1024>;   // [PLACES, N]
var<workgroup> shares: array<f32, 64>;

// The convolution at four places from `first` on, in channels 4n … 4n + 3; the places go to `sums` from `place` on.
fn convolve(t: u32, first: u32, place: u32, n: u32) {
  let quads = params.out_channels / 4u;
  var s0 = vec4<f32>();
  var s1 = vec4<f32>();
  var s2 = vec4<f32>();
  var s3 = vec4<f32>();
  for (var tap = 0u; tap < 9u; tap++) {
    let row = 2u * t + tap / 3u;  // one too large, as the columns are, so that none is negative
    if (row < 1u || row > params.rows) { continue; }
    let columns = 2u * (first + vec4<u32>(0u, 1u, 2u, 3u)) + tap % 3u;
    let inside = (columns >= vec4<u32>(1u)) & (columns <= vec4<u32>(params.columns));
    let safe = clamp(columns, vec4<u32>(1u), vec4<u32>(params.columns)) - 1u;
    let at = ((row - 1u) * params.columns + safe) * params.channels;
    var weights = tap * params.channels * quads + n;
    for (var c = 0u; c < params.channels; c++) {
      let near = select(vec4<f32>(), vec4<f32>(x[at.x + c], x[at.y + c], x[at.z + c], x[at.w + c]), inside);
      let weight = w[weights];
      s0 += near.x * weight;
      s1 += near.y * weight;
      s2 += near.z * weight;
      s3 += near.w * weight;
      weights += quads;
    }
  }
  for (var i = 0u; i < 4u; i++) {
    let to = place * params.out_channels + 4u * n + i;
    sums[to] = s0[i];
    sums[to + params.out_channels] = s1[i];
    sums[to + 2u * params.out_channels] = s2[i];
    sums[to + 3u * params.out_channels] = s3[i];
  }
}

// The mean over the channels, of which the threads of a place hold parts.
fn mean(part: f32, thread: u32) -> f32 {
  workgroupBarrier();
  shares[thread] = part;
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < SHARE; i++) { sum += shares[thread / SHARE * SHARE + i]; }
  return sum / f32(params.out_channels);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let channels = params.out_channels;
  let quads = channels / 4u;
  for (var i = thread; i < {{PLACES}}u / 4u * quads; i += 64u) {
    let place = i / quads * 4u;
    convolve(group.y, group.x * {{PLACES}}u + place, place, i % quads);
  }
  workgroupBarrier();
  let first = thread / SHARE * channels;
  var total = 0.0;
  for (var n = thread % SHARE; n < channels; n += SHARE) { total += sums[first + n]; }
  let middle = mean(total, thread);
  total = 0.0;
  for (var n = thread % SHARE; n < channels; n += SHARE) {
    let apart = sums[first + n] - middle;
    total += apart * apart;
  }
  let factor = inverseSqrt(mean(total, thread) + params.eps);
  let column = group.x * {{PLACES}}u + thread / SHARE;
  if (column >= params.out_columns) { return; }
  let out = (group.y * params.out_columns + column) * channels;
  for (var n = thread % SHARE; n < channels; n += SHARE) {
    y[out + n] = max(norm[n] * (factor * (sums[first + n] - middle)), 0.0);
  }
}
