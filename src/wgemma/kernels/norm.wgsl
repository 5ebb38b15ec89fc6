// x[r] and the residual stream behind it, for many rows at once (see residual.wgsl). One workgroup per row.
//
//   x [R, K] f32
//
// Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  scale: f32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(7) var<storage, read_write> x: array<vec4<f32>>;
//#include blocks
//#include reduce
//#include residual

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  prepare(group.x, me, true);
  let quads = params.blocks * 8u;
//#for j in PAIRS
  let i{{j}} = 2u * (thread + {{j}}u * {{THREADS}}u);
  if (i{{j}} < quads) {
    x[group.x * quads + i{{j}}] = near{{j}};
    x[group.x * quads + i{{j}} + 1u] = far{{j}};
  }
//#endfor
}
