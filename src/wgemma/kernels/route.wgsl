// Which experts a row goes to: the `used` largest of softmax(scores), ties to the lower index, their probabilities made
// to sum to one and multiplied by each expert's own scale.
//
//   scores [R, E] f32; expert_scale [E] f32; chosen [R, used] u32; weights [R, used] f32
//
// An expert's slot is the number of experts before it. A score that is not a number comes after all others: one that is
// chosen all the same makes the row's weights NaN, and the logits will tell.
//
// One workgroup per row; used ≤ E ≤ 1024. Grid: (R).

struct Params {
  experts: u32,
  used: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> expert_scale: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(4) var<storage, read_write> weights: array<f32>;
//#include keys

const THREADS = 128u;

// Integers have one order whatever a compiler thinks of NaN, so no two experts get the same slot and none stays empty.
var<workgroup> keys: array<vec4<u32>, 256>;  // of NaN: 0, which value_of takes for NaN; past the last expert: 0
var<workgroup> best: array<vec2<f32>, 1024>;  // by slot: score, scale

// The experts of a vector of keys.
fn four(q: u32) -> vec4<u32> {
  return vec4<u32>(4u * q) + vec4<u32>(0u, 1u, 2u, 3u);
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = group.x * params.experts;
  let quads = (params.experts + 3u) / 4u;
  for (var q = thread; q < quads; q += THREADS) {
    let at = vec4<u32>(first) + min(four(q), vec4<u32>(params.experts - 1u));
    let made = keys_of(vec4<f32>(scores[at.x], scores[at.y], scores[at.z], scores[at.w]));
    let counts = (four(q) < vec4<u32>(params.experts)) & (made <= vec4<u32>(INFINITE));
    keys[q] = select(vec4<u32>(), made, counts);
  }
  workgroupBarrier();
  for (var e = thread; e < params.experts; e += THREADS) {
    let scale = expert_scale[e];
    let key = keys[e / 4u][e % 4u];
    var before = vec4<u32>();
    for (var q = 0u; q < quads; q++) {
      // Of two that are equal the lower comes first.
      let least = vec4<u32>(key) + select(vec4<u32>(1u), vec4<u32>(), four(q) < vec4<u32>(e));
      before += select(vec4<u32>(), vec4<u32>(1u), keys[q] >= least);
    }
    let slot = before.x + before.y + before.z + before.w;
    if (slot < params.used) {
      chosen[group.x * params.used + slot] = e;
      best[slot] = vec2<f32>(value_of(key), scale);
    }
  }
  workgroupBarrier();
  let highest = best[0].x;
  var total = 0.0;
  for (var slot = 0u; slot < params.used; slot++) { total += exp(best[slot].x - highest); }
  for (var slot = thread; slot < params.used; slot += THREADS) {
    let share = exp(best[slot].x - highest) / total;
    weights[group.x * params.used + slot] = share * best[slot].y;
  }
}
