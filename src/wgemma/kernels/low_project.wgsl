// A few rows' inputs as adapters see them:   z[r, n] = scales[n] · Σ_k a[n, k] · x[r, k]
//
//   x or residual stream   RESIDUAL: x is made from h and o on the way (residual.wgsl) and written to x_out; else x [R, K]
//   a [N, K] f32; scales [N] f32; z [R, N] f32
//
// One workgroup per result: N is small, and so everything is asked for at once. Grid: (N, R).

struct Params {
  blocks: u32,  // K / 32
  scale: f32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(7) var<storage, read_write> z: array<f32>;
//#include reduce
//#if RESIDUAL
//#include residual
@group(0) @binding(8) var<storage, read_write> x_out: array<vec4<f32>>;
//#else
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
//#endif

@compute @workgroup_size({{THREADS}})
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let quads = params.blocks * 8u;
  let first = group.x * quads;
  var sum = 0.0;
//#if RESIDUAL
//#for j in PAIRS
  let i{{j}} = 2u * (thread + {{j}}u * {{THREADS}}u);
  var a_near{{j}} = vec4<f32>();  // before x is made, which takes a while
  var a_far{{j}} = vec4<f32>();
  if (i{{j}} < quads) {
    a_near{{j}} = a[first + i{{j}}];
    a_far{{j}} = a[first + i{{j}} + 1u];
  }
//#endfor
  prepare(group.y, thread, group.x == 0u);
//#for j in PAIRS
  sum += dot(a_near{{j}}, near{{j}}) + dot(a_far{{j}}, far{{j}});
  if (group.x == 0u && i{{j}} < quads) {
    x_out[(group.y * quads) + i{{j}}] = near{{j}};
    x_out[(group.y * quads) + i{{j}} + 1u] = far{{j}};
  }
//#endfor
//#else
  for (var i = thread; i < quads; i += {{THREADS}}u) { sum += dot(a[first + i], x[(group.y * quads) + i]); }
//#endif
  let total = workgroup_sum(sum, thread);
  if (thread == 0u) { z[(group.y * groups.x) + group.x] = scales[group.x] * total; }
}
