// Every patch looks at every patch, head by head, without mask or scale:  q[p] ← Σ_t softmax_t(q[p] · k[t]) v[t]
//
//   q, k, v [patches, heads, H] f32; the result takes the place of q
//
// The way of a software adapter, in place of vision_attention (see direct.wgsl): a thread does one query of one head,
// key after key; what was summed before shrinks when a higher score is found. A subgroup passes keys and values around:
// thread l loads vector t · LANES + l of each as its t-th. QUADS = H / 4; TURNS = QUADS / LANES, rounded up: queries are
// padded with zeros.
//
// Grid: (patches / THREADS, heads).

struct Params {
  patches: u32,
  heads: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;
//#include pass_around

const QUADS = {{QUADS}}u;

fn query(first: u32, i: u32) -> vec4<f32> {
  return select(vec4<f32>(), q[first + min(i, QUADS - 1u)], i < QUADS);
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(global_invocation_id) place: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let own = (min(place.x, params.patches - 1u) * params.heads + place.y) * QUADS;
  let lane = thread % LANES;
//#for t in TURNS
  let mine{{t}} = min({{t}}u * LANES + lane, QUADS - 1u);
//#for l in LANES
  let q{{t}}_{{l}} = query(own, {{t}}u * LANES + {{l}}u);
  var o{{t}}_{{l}} = vec4<f32>();
//#endfor
//#endfor
  var highest = -1e30;
  var total = 0.0;
  for (var other = 0u; other < params.patches; other++) {
    let at = (other * params.heads + place.y) * QUADS;
    var four = vec4<f32>();
//#for t in TURNS
    let k{{t}} = k[at + mine{{t}}];
    let v{{t}} = v[at + mine{{t}}];
//#endfor
//#for t in TURNS
//#for l in LANES
    four += q{{t}}_{{l}} * from_lane{{l}}(k{{t}});
//#endfor
//#endfor
    let score = (four.x + four.y) + (four.z + four.w);
    let peak = max(highest, score);
    let shrink = exp(highest - peak);
    let share = exp(score - peak);
    total = total * shrink + share;
//#for t in TURNS
//#for l in LANES
    o{{t}}_{{l}} = o{{t}}_{{l}} * shrink + share * from_lane{{l}}(v{{t}});
//#endfor
//#endfor
    highest = peak;
  }
  if (place.x >= params.patches) { return; }
//#for t in TURNS
//#for l in LANES
  if ({{t}}u * LANES + {{l}}u < QUADS) { q[own + {{t}}u * LANES + {{l}}u] = o{{t}}_{{l}} / total; }
//#endfor
//#endfor
}
