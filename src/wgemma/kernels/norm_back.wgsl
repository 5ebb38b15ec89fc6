// The way back through y = w ⊙ rms(x), for many rows:
//
//   back(x; w, dy) = f · (w ⊙ dy − x · f² · mean(w ⊙ dy ⊙ x)),   f = (mean x² + eps)^(−½)
//
//   RESIDUAL  v = scale · (h + w ⊙ rms(o)), x is o:   dv ← scale · dv, which is h's gradient;   d ← back(x; w, dv)
//   else      y = w ⊙ rms(v), x is v:                 d ← d + back(x; w, scale · dy)
//
//   x, dv or dy, d [R, K] f32; norms [·] f32, w beginning at vector `first`
//
// One workgroup per row. Grid: (R).

struct Params {
  blocks: u32,  // K / 32
  first: u32,
  scale: f32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> norms: array<vec4<f32>>;
//#if RESIDUAL
@group(0) @binding(3) var<storage, read_write> dv: array<vec4<f32>>;
//#else
@group(0) @binding(3) var<storage, read> dy: array<vec4<f32>>;
//#endif
@group(0) @binding(4) var<storage, read_write> d: array<vec4<f32>>;
//#include reduce

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let quads = params.blocks * 8u;
  let start = group.x * quads;
  var squares = 0.0;
  var products = 0.0;
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let part = x[start + i];
//#if RESIDUAL
    let above = params.scale * dv[start + i];
    dv[start + i] = above;
//#else
    let above = params.scale * dy[start + i];
//#endif
    squares += dot(part, part);
    products += dot(norms[params.first + i] * above, part);
  }
  let count = f32(quads * 4u);
  let factor = inverseSqrt(workgroup_sum(squares, me) / count + params.eps);
  let along = factor * factor * (workgroup_sum(products, me) / count);
  for (var i = thread; i < quads; i += {{THREADS}}u) {
    let at = start + i;
//#if RESIDUAL
    d[at] = factor * (norms[params.first + i] * dv[at] - along * x[at]);
//#else
    d[at] += factor * (params.scale * norms[params.first + i] * dy[at] - along * x[at]);
//#endif
  }
}
