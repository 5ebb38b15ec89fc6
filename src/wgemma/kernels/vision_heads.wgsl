// The heads of every patch as its attention wants them, in place:
//
//   q = turn(norms[0] ⊙ rms(q)),  k = turn(norms[1] ⊙ rms(k)),  v = rms(v)
//
// `turn` is rotary in two dimensions: the first half of a head turns with the patch's column, the second with its row;
// within a half of H/2 elements i and i + H/4 are a pair (rotary.wgsl).
//
//   q, k, v [patches, heads, H] f32;  norms [2, H] f32;  turns: rotary.wgsl, PAIRS = H / 4
//
// Sixteen lanes share a head. One workgroup per patch. Grid: (patches). Limits: H is a multiple of 4.

struct Params {
  heads: u32,
  across: u32,
  eps: f32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> k: array<f32>;
@group(0) @binding(3) var<storage, read_write> v: array<f32>;
@group(0) @binding(4) var<storage, read> norms: array<f32>;
@group(0) @binding(5) var<storage, read> turns: array<vec2<f32>>;
//#include rotary

const LANES = 16u;
const TOGETHER = 16u;  // heads at a time
const H = {{PAIRS}}u * 4u;
const HALF = H / 2u;
const PAIRS = {{PAIRS}}u;

var<workgroup> sums: array<f32, 256>;

fn value_of(which: u32, at: u32) -> f32 {
  if (which == 0u) { return q[at]; }
  if (which == 1u) { return k[at]; }
  return v[at];
}

fn put(which: u32, at: u32, value: f32) {
  if (which == 0u) { q[at] = value; } else if (which == 1u) { k[at] = value; } else { v[at] = value; }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % LANES;
  let units = 3u * params.heads;
  for (var first = 0u; first < units; first += TOGETHER) {
    let unit = first + thread / LANES;
    let which = unit / params.heads;  // 3: nobody's
    let start = (group.x * params.heads + unit % params.heads) * H;
    var sum = 0.0;
    if (unit < units) {
      for (var i = lane; i < H; i += LANES) {
        let x = value_of(which, start + i);
        sum += x * x;
      }
    }
    workgroupBarrier();
    sums[thread] = sum;
    workgroupBarrier();
    if (unit < units) {
      var total = 0.0;
      for (var i = 0u; i < LANES; i++) { total += sums[thread - lane + i]; }
      let factor = inverseSqrt(total / f32(H) + params.eps);
      for (var j = lane; j < HALF; j += LANES) {
        let low = j / PAIRS * HALF + j % PAIRS;
        turn_pair(which, start, low, j / PAIRS, factor, group.x);
      }
    }
  }
}

// Elements `low` and `low` + H/4 of one head; each is read and written by one lane only.
fn turn_pair(which: u32, start: u32, low: u32, half: u32, factor: f32, patch_index: u32) {
  let high = low + PAIRS;
  var pair = factor * vec2<f32>(value_of(which, start + low), value_of(which, start + high));
  if (which < 2u) {
    pair *= vec2<f32>(norms[which * H + low], norms[which * H + high]);
    let position = select(patch_index % params.across, patch_index / params.across, half == 1u);
    pair = rotate(pair.x, pair.y, low % HALF, position);
  }
  put(which, start + low, pair.x);
  put(which, start + high, pair.y);
}
