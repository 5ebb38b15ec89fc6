// q[r, head] ← softmax(q · kᵀ) v over the keys row r may see, for many rows; scale 1, all f32.
//
// A workgroup of {{THREADS}} does 32 queries that share a KV head (its heads of one row, then those of the next, …)
// over one split of the history, 64 keys at a time, with an online softmax:
//
//   scores     {{SLICE}} of a head at a time come through workgroup memory, and while they are multiplied the next are
//              on their way to registers. 64 threads make all scores, 8 queries × 4 keys each, from a part of each
//              slice; {{PARTS}} such parts are added up
//   shares     e^(score − highest so far), in place of the scores
//   values     straight from the cache, {{BATCH}} keys at a time: 8 queries × {{EACH}} times 8 of a head per thread
//
// What q, keys, values and partial are, and what a row sees, is in attention_many.wgsl. Only keys from the first to the
// last that one of the 32 sees are read at all.
//
// Grid: (R · heads / kv_heads / 32 rounded up, kv_heads, splits). D is a multiple of 8, SLICE of 32, `split` of 64.

//#include attention_many

const THREADS = {{THREADS}}u;
const D = {{HEAD}}u;
const WORDS = D / {{PER_WORD}}u;       // words of one key or value
const PARTS = {{PARTS}}u;              // THREADS / 64
const QUADS = {{SLICE}}u / 4u;         // vectors of a slice
const SLICE_WORDS = {{SLICE}}u / {{PER_WORD}}u;
const STRANDS = THREADS / 8u;          // threads that share four queries' softmax
const LANES = D / (8u * {{EACH}}u);    // threads that share eight queries' output
const KEYS = 64u;

// A slice of 32 queries and 64 keys: query 8r + j in row r + 4j, key k in row 32 + k, and vector i of a row at
// i xor row % 8, so that neighbouring rows meet different memory banks. Later scores, then shares: four queries a
// vector, key by key, with a pitch of 9.
var<workgroup> tile: array<vec4<f32>, 96u * QUADS>;
var<workgroup> peaks: array<vec4<f32>, 128>;   // the highest of four keys: 16 × 8 vectors over the queries
var<workgroup> shrinks: array<vec4<f32>, 8>;   // what a higher peak leaves of earlier sums
var<workgroup> begins: array<vec4<u32>, 8>;    // the positions each query sees: [begin, end)
var<workgroup> ends: array<vec4<u32>, 8>;
var<workgroup> places: array<u32, KEYS>;       // the first word of each value

fn grown(s: vec4<f32>, w: mat4x4<f32>, by: vec4<f32>) -> vec4<f32> {
  return s + w[0] * by.x + w[1] * by.y + w[2] * by.z + w[3] * by.w;
}

fn more(s: Pair, near: mat4x4<f32>, far: mat4x4<f32>, by: vec4<f32>) -> Pair {
  return Pair(grown(s.near, near, by), grown(s.far, far, by));
}

fn place(row: u32, i: u32) -> u32 {
  return row * QUADS + (i ^ (row & 7u));
}

fn share_at(key: u32, four: u32) -> u32 {
  return key * 9u + four;
}

// What a thread brings of a slice: vector (or word) n = thread + j · THREADS of all queries (or keys). RAGGED: there
// are not as many of them as that, or the last slice ends behind the head.
fn get_query(n: u32, from_quad: u32, slice: u32) -> vec4<f32> {
  let quad = slice * QUADS + n % QUADS;
//#if RAGGED
  if (n >= 32u * QUADS || quad >= D / 4u) { return vec4<f32>(); }
//#endif
  return q[from_quad + quad];
}

fn put_query(n: u32, part: vec4<f32>) {
  let query = n / QUADS;
//#if RAGGED
  if (n >= 32u * QUADS) { return; }
//#endif
  tile[place(query / 8u + query % 8u * 4u, n % QUADS)] = part;
}

fn get_key(n: u32, from_word: u32, slice: u32) -> {{WORD}} {
  let word = slice * SLICE_WORDS + n % SLICE_WORDS;
//#if RAGGED
  if (n >= KEYS * SLICE_WORDS || word >= WORDS) { return {{WORD}}(); }
//#endif
//#if SEGMENTED
  if (from_word == ELSEWHERE) { return {{WORD}}(); }
//#endif
  return keys[from_word + word];
}

fn put_key(n: u32, part: {{WORD}}) {
  let row = 32u + n / SLICE_WORDS;
//#if RAGGED
  if (n >= KEYS * SLICE_WORDS) { return; }
//#endif
//#if F16_CACHE
  let i = n % SLICE_WORDS * 2u;
  tile[place(row, i)] = vec4<f32>(unpack2x16float(part.x), unpack2x16float(part.y));
  tile[place(row, i + 1u)] = vec4<f32>(unpack2x16float(part.z), unpack2x16float(part.w));
//#else
  tile[place(row, n % SLICE_WORDS)] = part;
//#endif
}

fn masked(score: vec4<f32>, position: u32, four: u32) -> vec4<f32> {
  let at = vec4<u32>(position);
  return select(vec4<f32>(HIDDEN), score, (at >= begins[four]) & (at < ends[four]));
}

@compute @workgroup_size({{THREADS}})
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  // The last rows see the most: they begin first.
  let first_query = (groups.x - 1u - group.x) * 32u;
  let kv_head = group.y;
  let z = group.z;
  var begin = 0xffffffffu;
  var end = 0u;
  for (var r = first_query / together(); r <= (first_query + 31u) / together(); r++) {
    let span = span_of(r);
    begin = min(begin, span.x);
    end = max(end, span.y);
  }
  let last = max(end, 1u) - 1u;
  if (begin < end) {
    begin += z * params.split;
    if (z + 1u < params.splits) { end = min(end, begin + params.split); }
  }
  if (thread < 8u) {
    let query = first_query + thread * 4u;
    let a = span_of(query / together());
    let b = span_of((query + 1u) / together());
    let c = span_of((query + 2u) / together());
    let d = span_of((query + 3u) / together());
    begins[thread] = vec4<u32>(a.x, b.x, c.x, d.x);
    ends[thread] = vec4<u32>(a.y, b.y, c.y, d.y);
  }

  // For the scores: queries 8 · row …, keys column, column + 16, …. Threads that differ in their lowest bit read the
  // same keys, in the next one the same queries: workgroup memory serves such pairs at once.
  let part = thread / 64u;
  let row = (thread & 1u) | ((thread >> 2u) & 2u);
  let column = ((thread >> 1u) & 3u) | ((thread >> 2u) & 12u);
  // For the softmax: queries 4 · four …, and every STRANDS-th key.
  let four = thread % 8u;
  let strand = thread / 8u;
  var highest = vec4<f32>(LOWEST);
  var total = vec4<f32>();
  // For the output: queries 8 · band …, and eights lane, lane + LANES, … of a head; there may be threads left over.
  let band = thread / LANES;
  let lane = thread % LANES;
//#for w in EACH
//#for j in 4
  var near{{w}}_{{j}} = Pair();
  var far{{w}}_{{j}} = Pair();
//#endfor
//#endfor
//#if CARRIED
  if (params.resumes != 0u) {
//#for j in 4
    let state{{j}} = state_taken_up(first_query + four * 4u + {{j}}u, kv_head, z);
    highest[{{j}}] = state{{j}}.x;
    total[{{j}}] = select(0.0, state{{j}}.y, strand == 0u);
//#endfor
  }
  if (params.resumes != 0u && band < 4u) {
//#for w in EACH
//#for j in 4
    near{{w}}_{{j}} = output_taken_up(first_query + band * 8u + {{j}}u, kv_head, z, lane + {{w}}u * LANES);
    far{{w}}_{{j}} = output_taken_up(first_query + band * 8u + 4u + {{j}}u, kv_head, z, lane + {{w}}u * LANES);
//#endfor
//#endfor
  }
//#endif
//#for j in QUERY_LOADS
  let query{{j}} = min(first_query + (thread + {{j}}u * THREADS) / QUADS, params.rows * together() - 1u);
  let from_query{{j}} = row_and_head(query{{j}}, kv_head) * (D / 4u);
//#endfor

  var here = turn_at(begin, last);
  for (var start = begin; start < end; start += KEYS) {
//#if SEGMENTED
    if (is_elsewhere(here)) {
      here = turn_at(start + KEYS, last);
      continue;
    }
//#endif
    // Scores.
//#for j in QUERY_LOADS
    var coming_query{{j}} = get_query(thread + {{j}}u * THREADS, from_query{{j}}, 0u);
//#endfor
//#for j in KEY_LOADS
    let from_key{{j}} = word_of(here, start + (thread + {{j}}u * THREADS) / SLICE_WORDS, last, kv_head);
    var coming_key{{j}} = get_key(thread + {{j}}u * THREADS, from_key{{j}}, 0u);
//#endfor
//#for j in 4
    var s{{j}} = Pair();
//#endfor
    let ahead = turn_at(start + KEYS, last);
    for (var slice = 0u; slice < (D + {{SLICE}}u - 1u) / {{SLICE}}u; slice++) {
      workgroupBarrier();
//#for j in QUERY_LOADS
      put_query(thread + {{j}}u * THREADS, coming_query{{j}});
//#endfor
//#for j in KEY_LOADS
      put_key(thread + {{j}}u * THREADS, coming_key{{j}});
//#endfor
      workgroupBarrier();
      if ((slice + 1u) * {{SLICE}}u < D) {
//#for j in QUERY_LOADS
        coming_query{{j}} = get_query(thread + {{j}}u * THREADS, from_query{{j}}, slice + 1u);
//#endfor
//#for j in KEY_LOADS
        coming_key{{j}} = get_key(thread + {{j}}u * THREADS, from_key{{j}}, slice + 1u);
//#endfor
      }
      for (var i = part; i < QUADS; i += PARTS) {
        let even = row * QUADS + (i ^ row);
        let odd = row * QUADS + (i ^ row ^ 4u);
        let near = transpose(mat4x4<f32>(
          tile[even], tile[odd + 4u * QUADS], tile[even + 8u * QUADS], tile[odd + 12u * QUADS],
        ));
        let far = transpose(mat4x4<f32>(
          tile[even + 16u * QUADS], tile[odd + 20u * QUADS], tile[even + 24u * QUADS], tile[odd + 28u * QUADS],
        ));
        let at = place(32u + column, i);
//#for j in 4
        s{{j}} = more(s{{j}}, near, far, tile[at + {{j}}u * 16u * QUADS]);
//#endfor
      }
    }
    workgroupBarrier();
    for (var turn = 0u; turn < PARTS; turn++) {
      if (part == turn) {
        var peak = Pair(vec4<f32>(HIDDEN), vec4<f32>(HIDDEN));
//#for j in 4
        let near_at{{j}} = share_at(column + {{j}}u * 16u, row * 2u);
        let far_at{{j}} = share_at(column + {{j}}u * 16u, row * 2u + 1u);
        if (turn > 0u) {
          s{{j}}.near += tile[near_at{{j}}];
          s{{j}}.far += tile[far_at{{j}}];
        }
        if (turn + 1u == PARTS) {
          s{{j}}.near = masked(s{{j}}.near, start + column + {{j}}u * 16u, row * 2u);
          s{{j}}.far = masked(s{{j}}.far, start + column + {{j}}u * 16u, row * 2u + 1u);
//#if SEGMENTED
          if (word_of(here, start + column + {{j}}u * 16u, last, kv_head) == ELSEWHERE) {
            s{{j}} = Pair(vec4<f32>(HIDDEN), vec4<f32>(HIDDEN));
          }
//#endif
          peak = Pair(max(peak.near, s{{j}}.near), max(peak.far, s{{j}}.far));
        }
        tile[near_at{{j}}] = s{{j}}.near;
        tile[far_at{{j}}] = s{{j}}.far;
//#endfor
        if (turn + 1u == PARTS) {
          peaks[column * 8u + row * 2u] = peak.near;
          peaks[column * 8u + row * 2u + 1u] = peak.far;
        }
      }
      workgroupBarrier();
    }

    // Shares.
    var peak = highest;
    for (var i = 0u; i < 16u; i++) { peak = max(peak, peaks[i * 8u + four]); }
    let shrink = exp(highest - peak);
    highest = peak;
    total *= shrink;
    for (var key = strand; key < KEYS; key += STRANDS) {
      let share = exp(tile[share_at(key, four)] - peak);
      tile[share_at(key, four)] = share;
      total += share;
    }
    if (strand == 0u) { shrinks[four] = shrink; }
    if (thread < KEYS) { places[thread] = word_of(here, start + thread, last, kv_head); }
    workgroupBarrier();
    here = ahead;

    // Values.
    if (band < 4u) {
      let near_shrink = shrinks[band * 2u];
      let far_shrink = shrinks[band * 2u + 1u];
//#for w in EACH
//#for j in 4
      near{{w}}_{{j}} = scaled(near{{w}}_{{j}}, near_shrink[{{j}}]);
      far{{w}}_{{j}} = scaled(far{{w}}_{{j}}, far_shrink[{{j}}]);
//#endfor
//#endfor
      for (var key = 0u; key < min(KEYS, end - start); key += {{BATCH}}u) {
//#for i in BATCH
//#for w in EACH
        let value{{i}}_{{w}} = eight(places[key + {{i}}u], lane + {{w}}u * LANES);
//#endfor
//#endfor
//#for i in BATCH
        let near_share{{i}} = tile[share_at(key + {{i}}u, band * 2u)];
        let far_share{{i}} = tile[share_at(key + {{i}}u, band * 2u + 1u)];
//#for w in EACH
        let number{{i}}_{{w}} = numbers(value{{i}}_{{w}});
//#for j in 4
        near{{w}}_{{j}} = plus(near{{w}}_{{j}}, near_share{{i}}[{{j}}], number{{i}}_{{w}});
        far{{w}}_{{j}} = plus(far{{w}}_{{j}}, far_share{{i}}[{{j}}], number{{i}}_{{w}});
//#endfor
//#endfor
//#endfor
      }
    }
  }

  workgroupBarrier();
  tile[thread] = total;
  storageBarrier();
  workgroupBarrier();
  if (band < 4u) {
    var near_total = vec4<f32>();
    var far_total = vec4<f32>();
    for (var i = 0u; i < STRANDS; i++) {
      near_total += tile[i * 8u + band * 2u];
      far_total += tile[i * 8u + band * 2u + 1u];
    }
//#for w in EACH
//#for j in 4
    store(
      first_query + band * 8u + {{j}}u, kv_head, z, lane + {{w}}u * LANES, near{{w}}_{{j}}, near_total[{{j}}],
    );
    store(
      first_query + band * 8u + 4u + {{j}}u, kv_head, z, lane + {{w}}u * LANES, far{{w}}_{{j}}, far_total[{{j}}],
    );
//#endfor
//#endfor
  }
  if (strand == 0u) {
    var sum = vec4<f32>();
    for (var i = 0u; i < STRANDS; i++) { sum += tile[i * 8u + four]; }
//#for j in 4
    store_state(first_query + four * 4u + {{j}}u, kv_head, z, highest[{{j}}], sum[{{j}}]);
//#endfor
  }
}
