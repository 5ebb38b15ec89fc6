// y[t] = silu(norm ⊙ rms(c)),  c[n] = Σ_k w[n, k] · g[t − taps + 1 + k, n],  g[t, n] = u[t, n] · sigmoid(u[t, N + n]):
// a gated unit, a convolution of each channel with its own past (silence before the start), a norm, an activation.
//
//   u [T, 2, N] f32; w [N, taps] f32; norm [N] f32; y [T, N] f32
//
// One workgroup per t. Grid: (T).

struct Params {
  n: u32,
  taps: u32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> u: array<f32>;
@group(0) @binding(2) var<storage, read> w: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#include reduce
//#include sigmoid

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let t = group.x;
  let first = t * params.n;
  let past = min(params.taps, t + 1u);
  var square = 0.0;
  for (var n = thread; n < params.n; n += {{THREADS}}u) {
    var sum = 0.0;
    for (var back = 0u; back < past; back++) {
      let at = 2u * (t - back) * params.n + n;
      sum += w[(n + 1u) * params.taps - 1u - back] * (u[at] * sigmoid(u[at + params.n]));
    }
    y[first + n] = sum;  // for this thread alone, until the norm is known
    square += sum * sum;
  }
  let factor = inverseSqrt(workgroup_sum(square, me) / f32(params.n) + params.eps);
  for (var n = thread; n < params.n; n += {{THREADS}}u) {
    let value = norm[n] * (factor * y[first + n]);
    y[first + n] = value * sigmoid(value);
  }
}
