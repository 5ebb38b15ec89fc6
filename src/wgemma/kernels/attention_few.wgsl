// out[r, head] = softmax(q · kᵀ) v like attention.wgsl, for few rows: here the time goes by with waiting for memory, so
// a thread has all it reads in one turn in flight at once, the first turn's while the query is still being made.
//
// A workgroup of {{THREADS}} does {{HEADS}} heads that share their keys, of one row, over one split of the history.
// {{SHARE}} lanes share a key, and each has {{EACH}} words of four keys. D / {{PER_WORD}} threads make a group with
// {{VALUES}} keys of a turn: each has one word of the values of all of them, and the group has an online softmax of
// its own. In the end the groups' sums become one. With several splits, or while further segments follow, that goes to
// `partial`, with (max, sum).
//
//   q_raw         [R, stride] f32, heads × D
//   keys, values  [cache, kv_heads, D]   kv.wgsl; as vec4<u32> (eight f16) or vec4<f32>
//   partial       f32: out of every split [R, heads, splits, D], then (max, sum) [R, heads, splits, 2]
//   out           [R, heads, D] f32
//
// WIDE: the lanes of a key lie in one subgroup. Grid: (heads / {{HEADS}}, R, splits).
//
// Pages are looked up a turn ahead, so that only the first turn waits for them: twice for a turn that is one stretch
// (stretch.wgsl), otherwise twice each for a thread's keys and for its values.

//#include looking
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> q_raw: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> turns: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> keys: array<{{WORD}}>;
@group(0) @binding(6) var<storage, read> values: array<{{WORD}}>;
@group(0) @binding(7) var<storage, read_write> partial: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;
//#include rotary
//#include stretch

const THREADS = {{THREADS}}u;
const HEADS = {{HEADS}}u;
const D = {{HEAD}}u;
const HALF = D / 2u;
const QUADS = D / 4u;
const WORDS = D / {{PER_WORD}}u;         // of one key or value
const GROUPS = THREADS / WORDS;
const SHARE = {{SHARE}}u;
const OWN = {{VALUES}}u;                 // keys of a group
const KEYS = {{TURN}}u;                  // keys of a turn, OWN · GROUPS
const LOWEST = -3.0e38;
const HIDDEN = -3.4e38;                  // the score of a key in another segment
const ELSEWHERE = 0xffffffffu;           // and its first word

// Two in one: at first the query, vector i % (PER_WORD / 4) of every word together; in the end the threads' sums.
var<workgroup> room: array<vec4<f32>, max(HEADS * QUADS, {{PER_WORD}}u / 4u * THREADS)>;
var<workgroup> squares: array<f32, HEADS * QUADS>;
var<workgroup> scores: array<vec4<f32>, HEADS * KEYS / 4u>;
var<workgroup> weights: array<f32, HEADS * KEYS>;
var<workgroup> states: array<vec2<f32>, GROUPS>;
//#if !WIDE
var<workgroup> shares: array<vec4<f32>, THREADS>;
//#endif

// Two pairs (j, j + D/2) of a query, as the keys have them: turned, but not yet divided by the root mean square.
struct Pairs {
  turned: vec4<f32>,
  squares: f32,
}

fn query_pairs(first: u32, i: u32, position: u32) -> Pairs {
  let j = 2u * (i % QUADS);
  let at = first + i / QUADS * D + j;
  let raw = vec4<f32>(q_raw[at], q_raw[at + HALF], q_raw[at + 1u], q_raw[at + 1u + HALF]);
  let scaled = raw * vec4<f32>(norm[j], norm[j + HALF], norm[j + 1u], norm[j + 1u + HALF]);
  let turned = vec4<f32>(rotate(scaled.x, scaled.y, j, position), rotate(scaled.z, scaled.w, j + 1u, position));
  return Pairs(turned, dot(raw, raw));
}

fn put_query(i: u32, pairs: Pairs) {
  if (i >= HEADS * QUADS) { return; }
  squares[i] = pairs.squares;
//#if F16_CACHE
  room[i / QUADS * QUADS + i % 2u * WORDS + i % QUADS / 2u] = pairs.turned;
//#else
  room[i] = pairs.turned;
//#endif
}

fn query_factor(head: u32, lane: u32) -> f32 {
  var sum = 0.0;
//#if WIDE
  for (var i = lane; i < QUADS; i += SHARE) { sum += squares[head * QUADS + i]; }
  for (var step = 1u; step < SHARE; step *= 2u) { sum += subgroupShuffleXor(sum, step); }
//#else
  for (var i = 0u; i < QUADS; i++) { sum += squares[head * QUADS + i]; }
//#endif
  return inverseSqrt(sum / f32(D) + params.eps);
}

// The first word of key or value number `key` of a turn that begins at position `at`. Behind number `last` comes nothing.
fn words_of(key: u32, at: u32, last: u32, stretch: Stretch, kv_head: u32) -> u32 {
  let place = place_in(stretch, at + min(key, last));
//#if SEGMENTED
  if (place >= params.count) { return ELSEWHERE; }
//#endif
  return (place * params.kv_heads + kv_head) * WORDS;
}

fn key_word(first: u32, i: u32) -> {{WORD}} {
//#if SEGMENTED
  if (first == ELSEWHERE) { return {{WORD}}(); }
//#endif
  return keys[first + i];
}

fn value_word(first: u32, i: u32) -> {{WORD}} {
//#if SEGMENTED
  if (first == ELSEWHERE) { return {{WORD}}(); }
//#endif
  return values[first + i];
}

@compute @workgroup_size({{THREADS}})
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let row = row_at(group.y);
  let head = group.x * HEADS;
  let kv_head = head * params.kv_heads / params.heads;
  let lane = thread % SHARE;
  let word = thread % WORDS;
  let part = thread / WORDS;
  let quad = thread / SHARE * 4u;   // this thread's four keys begin here
  let own = part * OWN;             // and its group's
  let span = seen(row, group.z);
//#for h in HEADS
  var highest{{h}} = LOWEST;
  var total{{h}} = 0.0;
  var low{{h}} = vec4<f32>();   // this thread's word of the output, over its group's keys
  var high{{h}} = vec4<f32>();
//#endfor

  if (span.x < span.y) {
    let first = group.y * params.stride + head * D;
    var at = span.x;
    var last = span.y - span.x - 1u;
    let final_key = span.y - 1u;
    let table = table_of(group.y);
//#if STRETCH
    var key_stretch = stretch_at(at, final_key, table);
    var value_stretch = key_stretch;
//#else
    var key_stretch = stretch_at(at + quad, final_key, table);
    var value_stretch = stretch_at(at + own, final_key, table);
//#endif
//#for m in QUERIES
    let query{{m}} = query_pairs(first, min(thread + {{m}}u * THREADS, HEADS * QUADS - 1u), row.position);
//#endfor
//#for e in 4
    let key{{e}} = words_of(quad + {{e}}u, at, last, key_stretch, kv_head);
//#for i in EACH
    var k{{e}}_{{i}} = key_word(key{{e}}, lane + {{i}}u * SHARE);
//#endfor
//#endfor
//#for j in VALUES
    var v{{j}} = value_word(words_of(own + {{j}}u, at, last, value_stretch, kv_head), word);
//#endfor
//#for m in QUERIES
    put_query(thread + {{m}}u * THREADS, query{{m}});
//#endfor
    workgroupBarrier();
//#for h in HEADS
    let factor{{h}} = query_factor({{h}}u, lane);
//#endfor

    loop {
//#if STRETCH
      let keys_ahead = stretch_at(at + KEYS, final_key, table);
      let values_ahead = keys_ahead;
//#else
      let keys_ahead = stretch_at(at + KEYS + quad, final_key, table);
      let values_ahead = stretch_at(at + KEYS + own, final_key, table);
//#endif
//#for h in HEADS
      var s{{h}} = vec4<f32>();   // this thread's share of q · k
//#endfor
//#for i in EACH
      {
        let place = lane + {{i}}u * SHARE;
//#if F16_CACHE
//#for e in 4
        let near{{e}} = vec4<f32>(unpack2x16float(k{{e}}_{{i}}.x), unpack2x16float(k{{e}}_{{i}}.y));
        let far{{e}} = vec4<f32>(unpack2x16float(k{{e}}_{{i}}.z), unpack2x16float(k{{e}}_{{i}}.w));
//#endfor
//#for h in HEADS
        let q{{h}} = room[{{h}}u * QUADS + place];
        let r{{h}} = room[{{h}}u * QUADS + WORDS + place];
        s{{h}} += vec4<f32>(dot(near0, q{{h}}), dot(near1, q{{h}}), dot(near2, q{{h}}), dot(near3, q{{h}}));
        s{{h}} += vec4<f32>(dot(far0, r{{h}}), dot(far1, r{{h}}), dot(far2, r{{h}}), dot(far3, r{{h}}));
//#endfor
//#else
//#for h in HEADS
        let q{{h}} = room[{{h}}u * QUADS + place];
        s{{h}} += vec4<f32>(
          dot(k0_{{i}}, q{{h}}), dot(k1_{{i}}, q{{h}}), dot(k2_{{i}}, q{{h}}), dot(k3_{{i}}, q{{h}}),
        );
//#endfor
//#endif
      }
//#endfor
//#if SEGMENTED
//#for e in 4
      let here{{e}} = words_of(quad + {{e}}u, at, last, key_stretch, kv_head) != ELSEWHERE;
//#endfor
      let here = vec4<bool>(here0, here1, here2, here3);
//#endif
//#for h in HEADS
//#if WIDE
      for (var step = 1u; step < SHARE; step *= 2u) { s{{h}} += subgroupShuffleXor(s{{h}}, step); }
//#else
      shares[thread] = s{{h}};
      workgroupBarrier();
      for (var i = 1u; i < SHARE; i++) { s{{h}} += shares[thread - lane + (lane + i) % SHARE]; }
      workgroupBarrier();
//#endif
//#if SEGMENTED
      if (lane == 0u) { scores[({{h}}u * KEYS + quad) / 4u] = select(vec4<f32>(HIDDEN), factor{{h}} * s{{h}}, here); }
//#else
      if (lane == 0u) { scores[({{h}}u * KEYS + quad) / 4u] = factor{{h}} * s{{h}}; }
//#endif
//#endfor

      // As soon as the keys are used the next ones are asked for.
      let more = last >= KEYS;
      if (more) {
//#for e in 4
        let key{{e}} = words_of(quad + {{e}}u, at + KEYS, last - KEYS, keys_ahead, kv_head);
//#for i in EACH
        k{{e}}_{{i}} = key_word(key{{e}}, lane + {{i}}u * SHARE);
//#endfor
//#endfor
      }

      // Keys past the end have the score of the last one, which does no harm in a maximum, and no weight.
      workgroupBarrier();
//#for h in HEADS
      {
        var peak = highest{{h}};
//#for i in EACH
        let score{{i}} = scores[({{h}}u * KEYS + own) / 4u + {{i}}u];
        peak = max(peak, max(max(score{{i}}.x, score{{i}}.y), max(score{{i}}.z, score{{i}}.w)));
//#endfor
        let shrink = exp(highest{{h}} - peak);
        highest{{h}} = peak;
        total{{h}} *= shrink;
        low{{h}} *= shrink;
        high{{h}} *= shrink;
        let key = own + word;
        if (word < OWN) {
          let score = scores[({{h}}u * KEYS + key) / 4u][key % 4u];
          weights[{{h}}u * KEYS + key] = select(0.0, exp(score - peak), key <= last);
        }
      }
//#endfor
      workgroupBarrier();
//#for j in VALUES
      {
//#if F16_CACHE
        let near = vec4<f32>(unpack2x16float(v{{j}}.x), unpack2x16float(v{{j}}.y));
        let far = vec4<f32>(unpack2x16float(v{{j}}.z), unpack2x16float(v{{j}}.w));
//#else
        let near = v{{j}};
//#endif
//#for h in HEADS
        let weight{{h}} = weights[{{h}}u * KEYS + own + {{j}}u];
        total{{h}} += weight{{h}};
        low{{h}} += weight{{h}} * near;
//#if F16_CACHE
        high{{h}} += weight{{h}} * far;
//#endif
//#endfor
      }
//#endfor
      if (!more) { break; }
      at += KEYS;
      last -= KEYS;
      key_stretch = keys_ahead;
      value_stretch = values_ahead;
//#for j in VALUES
      v{{j}} = value_word(words_of(own + {{j}}u, at, last, value_stretch, kv_head), word);
//#endfor
    }
  }

  let done = params.splits == 1u && params.final_segment != 0u;
  let pairs = groups.y * params.heads * params.splits * D;
//#for h in HEADS
  {
    let which = group.y * params.heads + head + {{h}}u;
    let slot = which * params.splits + group.z;
    var before = vec2<f32>(LOWEST, 0.0);
    if (params.resumes != 0u) { before = vec2<f32>(partial[pairs + 2u * slot], partial[pairs + 2u * slot + 1u]); }
    room[thread] = low{{h}};
//#if F16_CACHE
    room[THREADS + thread] = high{{h}};
//#endif
    if (word == 0u) { states[part] = vec2<f32>(highest{{h}}, total{{h}}); }
    workgroupBarrier();
    var peak = before.x;
    for (var i = 0u; i < GROUPS; i++) { peak = max(peak, states[i].x); }
    let carry = exp(before.x - peak);
    var total = carry * before.y;
    for (var i = 0u; i < GROUPS; i++) { total += exp(states[i].x - peak) * states[i].y; }
    for (var d = thread; d < D; d += THREADS) {
      var sum = 0.0;
      let first = d % {{PER_WORD}}u / 4u * THREADS + d / {{PER_WORD}}u;
      for (var i = 0u; i < GROUPS; i++) { sum += exp(states[i].x - peak) * room[first + i * WORDS][d % 4u]; }
      if (params.resumes != 0u) { sum += carry * partial[slot * D + d]; }
      if (done) {
        out[which * D + d] = sum / max(total, 1.0e-37);
      } else {
        partial[slot * D + d] = sum;
      }
    }
    if (thread == 0u && !done) {
      partial[pairs + 2u * slot] = peak;
      partial[pairs + 2u * slot + 1u] = total;
    }
    workgroupBarrier();
  }
//#endfor
}
