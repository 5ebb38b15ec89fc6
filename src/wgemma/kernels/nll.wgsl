// What loss.wgsl found: nll[r] = max + log Σ − the target's logit, 0 for a row without a target; and their sum is added to
// total[0], in a fixed order.
//
//   state [R] vec4<f32>; targets [R] u32, 0xffffffff for none; nll [R] f32; total [1] f32
//
// One workgroup. Grid: (1).

struct Params {
  rows: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> state: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> targets: array<u32>;
@group(0) @binding(3) var<storage, read_write> nll: array<f32>;
@group(0) @binding(4) var<storage, read_write> total: array<f32>;
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(me: Thread) {
  let thread = me.index;
  var sum = 0.0;
  for (var r = thread; r < params.rows; r += {{THREADS}}u) {
    var value = 0.0;
    if (targets[r] != 0xffffffffu) { value = state[r].x - state[r].z + log(state[r].y); }
    nll[r] = value;
    sum += value;
  }
  let all = workgroup_sum(sum, me);
  if (thread == 0u) { total[0] += all; }
}
