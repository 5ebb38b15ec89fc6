// Cross-entropy over a vocabulary that comes in tiles: logits of tokens [first, first + width), soft-capped already
// (tile.wgsl with SOFTCAP). Two passes over the tiles; between them all that is kept of a row is four numbers.
//
//   SCAN  state[r] ← (max, Σ exp(l − max), the target's logit, 0) over this tile and, unless `fresh`, those before
//   BACK  l ← (exp(l − max) / Σ − [token = target]) · (1 − (l / cap)²), the gradient of the logits before the
//         cap; a cap of 0 is none. Rows without a target get zeros.
//
//   logits [R, width] f32; targets [R] u32, 0xffffffff for none; state [R] vec4<f32>, left alone where there is no target
//
// One workgroup per row. Grid: (R).

struct Params {
  width: u32,
  first: u32,
  fresh: u32,
  cap: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: array<vec4<f32>>;
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let start = group.x * params.width;
  let goal = targets[group.x];
  let known = goal != 0xffffffffu;
  let own = goal - params.first;  // the target's place in this tile, if it is below the width
//#if SCAN
  if (!known) { return; }
  var before = vec4<f32>(-3.4e38, 0.0, 0.0, 0.0);
  if (params.fresh == 0u) { before = state[group.x]; }
  var peak = before.x;
  for (var i = thread; i < params.width; i += {{THREADS}}u) { peak = max(peak, logits[start + i]); }
  let highest = workgroup_max(peak, me);
  var sum = 0.0;
  for (var i = thread; i < params.width; i += {{THREADS}}u) { sum += exp(logits[start + i] - highest); }
  let total = workgroup_sum(sum, me);
  if (thread == 0u) {
    var chosen = before.z;
    if (own < params.width) { chosen = logits[start + own]; }
    state[group.x] = vec4<f32>(highest, before.y * exp(before.x - highest) + total, chosen, 0.0);
  }
//#else
  let seen = state[group.x];
  for (var i = thread; i < params.width; i += {{THREADS}}u) {
    let l = logits[start + i];
    var slope = 0.0;
    if (known) {
      slope = exp(l - seen.x) / seen.y - select(0.0, 1.0, i == own);
      // Near the cap all depends on the difference, which is exact before a division and not after it.
      if (params.cap != 0.0) { slope *= (params.cap - l) / params.cap * ((params.cap + l) / params.cap); }
    }
    logits[start + i] = slope;
  }
//#endif
}
