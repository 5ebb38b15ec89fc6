// Which experts a row goes to: the `used` largest of softmax(scores), ties to the lower index, their probabilities made
// to sum to one and multiplied by each expert's own scale.
//
//   scores [R, E] f32; expert_scale [E] f32; chosen [R, used] u32; weights [R, used] f32
//
// One workgroup per row; E ≤ 1024. Grid: (R).

struct Params {
  experts: u32,
  used: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> expert_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> weights: array<f32>;

var<workgroup> value: array<f32, 1024>;
var<workgroup> best: array<f32, 64>;
var<workgroup> best_index: array<u32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  for (var e = thread; e < params.experts; e += 64u) { value[e] = scores[group.x * params.experts + e]; }
  workgroupBarrier();
  var highest = 0.0;
  var total = 0.0;
  for (var slot = 0u; slot < params.used; slot++) {
    var peak = -3.4e38;
    var peak_index = 0xffffffffu;
    for (var e = thread; e < params.experts; e += 64u) {
      if (value[e] > peak) {
        peak = value[e];
        peak_index = e;
      }
    }
    best[thread] = peak;
    best_index[thread] = peak_index;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
      if (thread < half) {
        let other = thread + half;
        if (best[other] > best[thread] || (best[other] == best[thread] && best_index[other] < best_index[thread])) {
          best[thread] = best[other];
          best_index[thread] = best_index[other];
        }
      }
      workgroupBarrier();
    }
    // A score that is not a number is never the largest: the expert then is the last, and the logits will tell.
    let winner = min(best_index[0], params.experts - 1u);
    if (slot == 0u) { highest = best[0]; }
    let share = exp(best[0] - highest);
    total += share;
    workgroupBarrier();
    if (thread == 0u) {
      value[winner] = -3.4e38;
      chosen[group.x * params.used + slot] = winner;
      weights[group.x * params.used + slot] = share;
    }
    workgroupBarrier();
  }
  storageBarrier();
  for (var slot = thread; slot < params.used; slot += 64u) {
    let at = group.x * params.used + slot;
    weights[at] = weights[at] / total * expert_scale[chosen[at]];
  }
}
