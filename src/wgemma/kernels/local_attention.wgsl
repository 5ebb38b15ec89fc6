// out[t, head] = softmax_δ(cap · tanh(score / cap)) · v[t − δ] over δ = 0 … {{KEYS}} − 1 that are not before the start, with
// score = (q[t] ⊙ a) · (k[t − δ] ⊙ b + relative[δ]).
//
//   qkv      [T, 3, heads, D] f32
//   scales   [2, D] f32: a, b
//   relative [{{KEYS}}, heads, D] f32
//   out      [T, heads, D] f32
//
// A workgroup of 128 does one head of one t: eight threads share a key, then all share the output. Grid: (heads, T).
// Limits: KEYS ≤ 16.

struct Params {
  head: u32,   // D
  width: u32,  // heads · D
  cap: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read> relative: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
//#include softcap

var<workgroup> shares: array<f32, 128>;
var<workgroup> scores: array<f32, {{KEYS}}>;

// This thread's share of the score of the key `back` steps before t.
fn score(t: u32, first: u32, back: u32, lane: u32) -> f32 {
  let q = 3u * t * params.width + first;
  let k = (3u * (t - back) + 1u) * params.width + first;
  let r = back * params.width + first;
  var sum = 0.0;
  for (var d = lane; d < params.head; d += 8u) {
    sum += qkv[q + d] * scales[d] * (qkv[k + d] * scales[params.head + d] + relative[r + d]);
  }
  return sum;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let t = group.y;
  let first = group.x * params.head;
  let count = min({{KEYS}}u, t + 1u);
  shares[thread] = 0.0;
  if (thread / 8u < count) { shares[thread] = score(t, first, thread / 8u, thread % 8u); }
  workgroupBarrier();
  if (thread < count) {
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) { sum += shares[8u * thread + i]; }
    scores[thread] = softcap(sum, params.cap);
  }
  workgroupBarrier();
  var highest = scores[0];
  for (var i = 1u; i < count; i++) { highest = max(highest, scores[i]); }
  for (var d = thread; d < params.head; d += 128u) {
    var total = 0.0;
    var sum = 0.0;
    for (var i = 0u; i < count; i++) {
      let weight = exp(scores[i] - highest);
      total += weight;
      sum += weight * qkv[(3u * (t - i) + 2u) * params.width + first + d];
    }
    out[t * params.width + first + d] = sum / total;
  }
}
