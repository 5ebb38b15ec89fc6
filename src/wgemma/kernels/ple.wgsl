// The per-layer inputs of a row, from its projection c and its row of the table:
//
//   ple[r, l] = (norm ⊙ rms(c[r, l] / √d) + table[r, l]) / √2
//
//   c, table, ple [R, L, P] f32 (the table's rows come scaled by √P); norm [P] f32
//
// One workgroup per (l, r). Grid: (L, R).

struct Params {
  p: u32,
  eps: f32,
  scale: f32,  // 1 / √d
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> c: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read_write> ple: array<f32>;
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  let first = (group.y * groups.x + group.x) * params.p;
  var sum = 0.0;
  for (var i = thread; i < params.p; i += {{THREADS}}u) {
    let value = params.scale * c[first + i];
    sum += value * value;
  }
  let factor = params.scale * inverseSqrt(workgroup_sum(sum, me) / f32(params.p) + params.eps);
  for (var i = thread; i < params.p; i += {{THREADS}}u) {
    ple[first + i] = (norm[i] * (factor * c[first + i]) + table[first + i]) * 0.70710678;
  }
}
