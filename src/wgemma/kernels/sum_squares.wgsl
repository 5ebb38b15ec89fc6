// Σ g² of a flat buffer, in two steps whose order is fixed:
//
//   first   shares[i] = Σ of the squares that workgroup i meets
//   JOIN    norm[0] = Σ shares, added to what is there unless `fresh`
//
//   gradients [count] f32; shares [groups] f32; norm [1] f32
//
// Grid: (groups), each going on to further elements; JOIN, whose count is that of the groups: (1).

struct Params {
  count: u32,
//#if JOIN
  fresh: u32,
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#if JOIN
@group(0) @binding(1) var<storage, read> shares: array<f32>;
@group(0) @binding(2) var<storage, read_write> norm: array<f32>;
//#else
@group(0) @binding(1) var<storage, read> gradients: array<f32>;
@group(0) @binding(2) var<storage, read_write> shares: array<f32>;
//#endif
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  var sum = 0.0;
//#if JOIN
  for (var i = thread; i < params.count; i += {{THREADS}}u) { sum += shares[i]; }
  var all = workgroup_sum(sum, me);
  if (thread == 0u) {
    if (params.fresh == 0u) { all += norm[0]; }
    norm[0] = all;
  }
//#else
  for (var i = group.x * {{THREADS}}u + thread; i < params.count; i += groups.x * {{THREADS}}u) {
    sum += gradients[i] * gradients[i];
  }
  let all = workgroup_sum(sum, me);
  if (thread == 0u) { shares[group.x] = all; }
//#endif
}
