// One step of AdamW on a flat buffer of trainable numbers (the formula of PyTorch's):
//
//   g      = share · gradient · min(1, clip / (share · √norm + 1e-6)); a clip of 0 is none
//   first  = beta1 · first + rest1 · g
//   second = beta2 · second + rest2 · g²
//   value  = value · (1 − rate · decay) − rate · (first / correction1) / (√(second / correction2) + eps)
//
// The gradient is zero afterwards, for the next step's to be added to. It is that of a sum of losses, and `share` one over
// their number, or it is that of their mean, and `share` 1. rest1 and rest2 are 1 − beta1 and 1 − beta2, made where there
// are digits enough for it, as are the corrections 1 − beta1ᵗ and 1 − beta2ᵗ.
//
//   values, gradients, first, second [count] f32; norm [1] f32, Σ gradient² of all buffers (sum_squares.wgsl)
//
// Grid: (groups), each of 256 threads, going on to further elements.

struct Params {
  count: u32,
  rate: f32,
  beta1: f32,
  beta2: f32,
  eps: f32,
  decay: f32,
  correction1: f32,
  correction2: f32,
  clip: f32,
  rest1: f32,
  rest2: f32,
  share: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> values: array<f32>;
@group(0) @binding(2) var<storage, read_write> gradients: array<f32>;
@group(0) @binding(3) var<storage, read_write> first: array<f32>;
@group(0) @binding(4) var<storage, read_write> second: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  var factor = params.share;
  if (params.clip != 0.0) { factor *= min(1.0, params.clip / (params.share * sqrt(norm[0]) + 1e-6)); }
  for (var i = id.x; i < params.count; i += groups.x * 256u) {
    let g = factor * gradients[i];
    let m = params.beta1 * first[i] + params.rest1 * g;
    let v = params.beta2 * second[i] + params.rest2 * g * g;
    let pull = m / params.correction1 / (sqrt(v / params.correction2) + params.eps);
    values[i] = values[i] * (1.0 - params.rate * params.decay) - params.rate * pull;
    first[i] = m;
    second[i] = v;
    gradients[i] = 0.0;
  }
}
