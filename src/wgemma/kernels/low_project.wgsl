// A few rows' inputs as adapters see them:   z[r, n] = scales[r, n] · Σ_k a[n, k] · x[r, k]
// Or as a router does, whose matrix has few rows, too; BARE: without scales.
//
// The result is left in shares that are to be added up: each is what a part of k gives. What is MADE lies in the first.
//
//   x                      MADE: on the way and written to x_out, from the residual stream (residual.wgsl) or, JOIN, from
//                          what the splits of a history gave (joined.wgsl); else x [R, K]
//   a [N, K] f32; scales [R, scale_step] f32, a step of 0 being one setting for all rows; z [R, N, shares] f32
//
// One workgroup per share (low_share.wgsl), since N is small. A thread asks for all it needs of a before x is made.
// Grid: (N, R, shares); MADE: (N, R).

struct Params {
  blocks: u32,  // K / 32
  shares: u32,
//#if !BARE
  scale_step: u32,
//#endif
//#if MADE
//#if JOIN
  heads: u32,
  splits: u32,
  ends: u32,    // where the pairs of (max, sum) begin in `partial`, in vectors of four
//#else
  scale: f32,
  eps: f32,
//#if PARTS
  o_parts: u32,
  o_step: u32,  // vectors of four from one part to the next
//#endif
//#endif
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<vec4<f32>>;
//#if !BARE
@group(0) @binding(2) var<storage, read> scales: array<f32>;
//#endif
@group(0) @binding(7) var<storage, read_write> z: array<f32>;
//#include blocks
//#include reduce
//#if MADE
//#include {{MADE}}
@group(0) @binding(8) var<storage, read_write> x_out: array<vec4<f32>>;
//#else
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
//#include low_share
//#endif

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
//#if BARE
  let scale = 1.0;
//#else
  let scale = scales[group.y * params.scale_step + group.x];
//#endif
//#if MADE
  let quads = params.blocks * 8u;
  let first_a = group.x * quads;
  let first_x = group.y * quads;
//#for j in PAIRS
  let i{{j}} = 2u * (me.index + {{j}}u * {{THREADS}}u);
  var a_near{{j}} = vec4<f32>();
  var a_far{{j}} = vec4<f32>();
  if (i{{j}} < quads) {
    a_near{{j}} = a[first_a + i{{j}}];
    a_far{{j}} = a[first_a + i{{j}} + 1u];
  }
//#endfor
  prepare(group.y, me, group.x == 0u);
  var sum = 0.0;
//#for j in PAIRS
  sum += dot(a_near{{j}}, near{{j}}) + dot(a_far{{j}}, far{{j}});
  if (group.x == 0u && i{{j}} < quads) {
    x_out[first_x + i{{j}}] = near{{j}};
    x_out[first_x + i{{j}} + 1u] = far{{j}};
  }
//#endfor
//#else
  let sum = low_share(group.x, group.y, group.z, params.shares, me.index);
//#endif
  // Every thread scales its share, so that none waits for the scale in the end.
  let total = workgroup_sum(scale * sum, me);
  let at = ((group.y * groups.x) + group.x) * params.shares;
//#if MADE
  if (me.index < params.shares) { z[at + me.index] = select(0.0, total, me.index == 0u); }
//#else
  if (me.index == 0u) { z[at + group.z] = total; }
//#endif
}
