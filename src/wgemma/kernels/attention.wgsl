// out[r, head] = softmax(q · kᵀ) v over the keys row r may see, with q = rotate(norm ⊙ rms(q_raw)); scale 1, all f32.
//
// A workgroup of {{THREADS}} does one head of one row over one split of the history, a key per thread at a time, with an
// online softmax. With one split the result is final; with several, or while further segments of the cache follow,
// (max, sum, out) go to `partial`, to be taken up by the next segment's dispatch and joined by attention_join.wgsl.
//
//   q_raw         [R, stride] f32, heads × D
//   keys, values  [cache, kv_heads, D]   kv.wgsl; as vec4<u32> (eight f16) or vec4<f32>
//   partial       f32: out of every split [R, heads, splits, D], then (max, sum) [R, heads, splits, 2]
//   out           [R, heads, D] f32
//
// Grid: (heads, R, splits).
//
// PACKED: the rows are whole sequences one after another, the key of row r lies at place r, and a sequence begins at row
// r − position. One split, one segment, no images; log Σ e^(q · k) of each row and head goes to partial [R, heads].

//#include looking
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> q_raw: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> turns: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> keys: array<{{WORD}}>;
@group(0) @binding(6) var<storage, read> values: array<{{WORD}}>;
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;
//#include reduce
//#include rotary

const THREADS = {{THREADS}}u;
const D = {{HEAD}}u;
const HALF = D / 2u;
const WORDS = D / {{PER_WORD}}u;   // words of one key or value
const GROUPS = THREADS / WORDS;     // threads that share a word of the output
const LOWEST = -3.0e38;
const ELSEWHERE = 0xffffffffu;       // the place of a key in another segment

var<workgroup> q: array<vec4<f32>, D / 4u>;       // pairs (j, j + D/2), as the keys have them
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> places: array<u32, THREADS>;       // the first word of each key and value
var<workgroup> sums: array<vec4<f32>, 2u * THREADS>;

fn load_query(first: u32, position: u32, me: Thread) {
  let thread = me.index;
  var sum = 0.0;
  for (var i = thread; i < D; i += THREADS) { sum += q_raw[first + i] * q_raw[first + i]; }
  let factor = inverseSqrt(workgroup_sum(sum, me) / f32(D) + params.eps);
  for (var i = thread; i < D / 4u; i += THREADS) {
    let j = 2u * i;
    let a = rotate(factor * norm[j] * q_raw[first + j], factor * norm[j + HALF] * q_raw[first + j + HALF], j, position);
    let b = rotate(
      factor * norm[j + 1u] * q_raw[first + j + 1u], factor * norm[j + 1u + HALF] * q_raw[first + j + 1u + HALF],
      j + 1u, position,
    );
    q[i] = vec4<f32>(a, b);
  }
  workgroupBarrier();
}

// The first word of a row's key or value.
fn word_of(position: u32, r: u32, kv_head: u32) -> u32 {
//#if PACKED
  let place = position;
//#else
  let place = place_of(position, table_of(r)) - params.first;
//#endif
//#if SEGMENTED
  if (place >= params.count) { return ELSEWHERE; }
//#endif
  return (place * params.kv_heads + kv_head) * WORDS;
}

fn value(first: u32, i: u32) -> {{WORD}} {
//#if SEGMENTED
  if (first == ELSEWHERE) { return {{WORD}}(); }
//#endif
  return values[first + i];
}

fn score(first: u32) -> f32 {
  var sum = 0.0;
  for (var i = 0u; i < WORDS; i++) {
    let word = keys[first + i];
//#if F16_CACHE
    sum += dot(vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y)), q[2u * i])
      + dot(vec4<f32>(unpack2x16float(word.z), unpack2x16float(word.w)), q[2u * i + 1u]);
//#else
    sum += dot(word, q[i]);
//#endif
  }
  return sum;
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  let row = row_at(group.y);
  let head = group.x;
  let kv_head = head * params.kv_heads / params.heads;
  load_query(group.y * params.stride + head * D, row.position, me);

//#if PACKED
  // The places of this sequence: [begin, end).
  var begin = group.y - row.position;
  if (params.window > 0u) { begin += max(row.position + 1u, params.window) - params.window; }
  var end = group.y + 1u;
  end = select(end, begin, row.used == 0u);
//#else
  let span = seen(row, group.z);
  let begin = span.x;
  let end = span.y;
//#endif

  let slot = (group.y * params.heads + head) * params.splits + group.z;
  let pair = groups.y * params.heads * params.splits * D + 2u * slot;
  var highest = LOWEST;
  var total = 0.0;
  var low = vec4<f32>();   // this thread's share of the output: word thread % WORDS, over keys thread / WORDS, …
  var high = vec4<f32>();
  if (params.resumes != 0u) {
    highest = partial[pair];
    total = partial[pair + 1u];
  }
  let before = highest;
  let word = thread % WORDS;
  let part = thread / WORDS;
  for (var start = begin; start < end; start += THREADS) {
    let position = start + thread;
    var counts = position < end;
    var mine = LOWEST;
    if (counts) {
      let first = word_of(position, group.y, kv_head);
      places[thread] = first;
//#if SEGMENTED
      counts = first != ELSEWHERE;
//#endif
      if (counts) { mine = score(first); }
    }
    let peak = max(highest, workgroup_max(mine, me));
    let weight = select(0.0, exp(mine - peak), counts);
    let shrink = exp(highest - peak);
    total = total * shrink + workgroup_sum(weight, me);
    weights[thread] = weight;
    workgroupBarrier();
    low *= shrink;
    high *= shrink;
    let count = min(THREADS, end - start);
    // Four values at a time, so that their loads do not wait for each other.
    for (var i = part; i < count; i += 4u * GROUPS) {
      for (var j = 0u; j < 4u; j++) {
        let key = min(i + j * GROUPS, count - 1u);
        let share = select(0.0, weights[key], i + j * GROUPS < count);
        let data = value(places[key], word);
//#if F16_CACHE
        low += share * vec4<f32>(unpack2x16float(data.x), unpack2x16float(data.y));
        high += share * vec4<f32>(unpack2x16float(data.z), unpack2x16float(data.w));
//#else
        low += share * data;
//#endif
      }
    }
    highest = peak;
    workgroupBarrier();
  }
  sums[2u * thread] = low;
  sums[2u * thread + 1u] = high;
  workgroupBarrier();

  let done = params.splits == 1u && params.final_segment != 0u;
  let carry = select(0.0, exp(before - highest), params.resumes != 0u);
  for (var d = thread; d < D; d += THREADS) {
    var sum = 0.0;
    for (var i = 0u; i < GROUPS; i++) {
      let shares = 2u * (i * WORDS + d / {{PER_WORD}}u) + d % {{PER_WORD}}u / 4u;
      sum += sums[shares][d % 4u];
    }
    if (params.resumes != 0u) { sum += carry * partial[slot * D + d]; }
    if (done) {
      out[(group.y * params.heads + head) * D + d] = sum / max(total, 1.0e-37);
    } else {
      partial[slot * D + d] = sum;
    }
  }
//#if PACKED
  if (thread == 0u) {
    partial[group.y * params.heads + head] = select(highest + log(total), 0.0, row.used == 0u);
  }
//#else
  storageBarrier();
  workgroupBarrier();
  if (thread == 0u && !done) {
    partial[pair] = highest;
    partial[pair + 1u] = total;
  }
//#endif
}
