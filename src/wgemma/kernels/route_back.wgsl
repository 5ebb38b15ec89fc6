// The way back through the weights of route.wgsl, wₛ = scaleₛ · shareₛ with share = softmax over the chosen scores:
//
//   dwₛ = Σ d_act[s] · act[s]                             the slope of an expert's weight
//   dscores[chosenₛ] = shareₛ (gₛ − Σⱼ shareⱼ gⱼ)         g = scale · dw; all other scores get 0
//   d_act[s] ← wₛ · d_act[s]
//
//   scores, dscores [R, E] f32; expert_scale [E] f32; chosen [R, used] u32
//   act   [R, used, width] f32   what went into the experts' last product W
//   d_act [R, used, width] f32   comes in as Wᵀ d_sum, with which act makes dw; leaves as the gradient of act
//
// Nothing is divided by a weight, so an expert whose own scale is 0 is like any other. One workgroup per row; up to 64
// experts are used. Grid: (R).

struct Params {
  experts: u32,
  used: u32,
  width: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> expert_scale: array<f32>;
@group(0) @binding(3) var<storage, read> chosen: array<u32>;
@group(0) @binding(4) var<storage, read> act: array<f32>;
@group(0) @binding(5) var<storage, read_write> d_act: array<f32>;
@group(0) @binding(6) var<storage, read_write> dscores: array<f32>;
//#include reduce

var<workgroup> slopes: array<f32, 64>;  // g

fn score(r: u32, slot: u32) -> f32 {
  return scores[r * params.experts + chosen[r * params.used + slot]];
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let r = group.x;
  let highest = score(r, 0u);  // the best was chosen first
  var total = 0.0;
  for (var slot = 0u; slot < params.used; slot++) { total += exp(score(r, slot) - highest); }
  var mean = 0.0;
  for (var slot = 0u; slot < params.used; slot++) {
    let first = (r * params.used + slot) * params.width;
    let scale = expert_scale[chosen[r * params.used + slot]];
    let share = exp(score(r, slot) - highest) / total;
    var sum = 0.0;
    for (var i = thread; i < params.width; i += {{THREADS}}u) {
      sum += d_act[first + i] * act[first + i];
      d_act[first + i] *= scale * share;
    }
    let slope = scale * workgroup_sum(sum, me);
    mean += share * slope;
    if (thread == 0u) { slopes[slot] = slope; }
  }
  workgroupBarrier();
  for (var e = thread; e < params.experts; e += {{THREADS}}u) {
    var result = 0.0;
    for (var slot = 0u; slot < params.used; slot++) {
      if (chosen[r * params.used + slot] == e) { result = exp(score(r, slot) - highest) / total * (slopes[slot] - mean); }
    }
    dscores[r * params.experts + e] = result;
  }
}
