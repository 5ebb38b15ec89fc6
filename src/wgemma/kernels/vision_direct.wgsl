// Every patch looks at every patch, head by head, without mask or scale:  q[p] ← Σ_t softmax_t(q[p] · k[t]) v[t]
//
//   q, k, v [patches, heads, H] f32; the result takes the place of q
//
// The way of a software adapter, in place of vision_attention (see direct.wgsl): a thread does one query of one head,
// key after key; what was summed before shrinks when a higher score is found. QUADS = H / 4.
//
// Grid: (patches / 64, heads).

struct Params {
  patches: u32,
  heads: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;

const QUADS = {{QUADS}}u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) place: vec3<u32>) {
  if (place.x >= params.patches) { return; }
  let own = (place.x * params.heads + place.y) * QUADS;
  var sums: array<vec4<f32>, QUADS>;
  var highest = -1e30;
  var total = 0.0;
  for (var t = 0u; t < params.patches; t++) {
    let other = (t * params.heads + place.y) * QUADS;
    var score = 0.0;
    for (var i = 0u; i < QUADS; i++) { score += dot(q[own + i], k[other + i]); }
    let peak = max(highest, score);
    let shrink = exp(highest - peak);
    let share = exp(score - peak);
    total = total * shrink + share;
    for (var i = 0u; i < QUADS; i++) { sums[i] = sums[i] * shrink + share * v[other + i]; }
    highest = peak;
  }
  for (var i = 0u; i < QUADS; i++) { q[own + i] = sums[i] / total; }
}
