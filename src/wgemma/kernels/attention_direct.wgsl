// q[r, head] ← softmax(q · kᵀ) v over the keys row r may see, for many rows; scale 1, all f32.
//
// The way of a software adapter, in place of attention_tile (see direct.wgsl): a thread does one query, and the
// {{LANES}} threads of a subgroup go over the keys that one of them sees, {{KEYS}} at a time, with an online softmax.
// A head goes through registers in slices of 8 · LANES numbers: thread l loads the l-th eight of each key's slice, and
// the subgroup passes it around, because loads are what costs most there. Sums rest in `partial` meanwhile (CARRIED).
//
// What q, keys, values and partial are, and what a row sees, is in attention_many.wgsl.
//
// Grid: (R · heads / kv_heads / LANES rounded up, kv_heads); one split. D is a multiple of 8 · LANES.

//#include attention_many
//#include pass_around

const KEYS = {{KEYS}}u;

//#if F16_CACHE
fn key_eight(at: u32, i: u32) -> Pair {
  return numbers(keys[at + i]);
}
//#else
fn key_eight(at: u32, i: u32) -> Pair {
  return Pair(keys[at + 2u * i], keys[at + 2u * i + 1u]);
}
//#endif

fn leave(query: u32, kv_head: u32, i: u32, o: Pair) {
  if (query < params.rows * together()) { put_back(query, kv_head, 0u, i, o); }
}

@compute @workgroup_size({{LANES}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first_query = group.x * LANES;
  let kv_head = group.y;
  let query = first_query + lane;
  let own = span_of(query / together());
  var begin = 0xffffffffu;
  var end = 0u;
  for (var r = first_query / together(); r <= (first_query + LANES - 1u) / together(); r++) {
    let span = span_of(r);
    begin = min(begin, span.x);
    end = max(end, span.y);
  }
  let last = max(end, 1u) - 1u;
  let from_quad = row_and_head(min(query, params.rows * together() - 1u), kv_head) * (D / 4u);
  var highest = LOWEST;
  var total = 0.0;
  if (params.resumes != 0u) {
    let state = state_taken_up(query, kv_head, 0u);
    highest = state.x;
    total = state.y;
  } else {
    for (var i = 0u; i < params.eights; i++) { leave(query, kv_head, i, Pair()); }
  }

  var places: array<u32, KEYS>;  // the first word of each key
  var scores: array<f32, KEYS>;  // later shares
  for (var start = begin; start < end; start += KEYS) {
    let count = min(KEYS, end - start);
    for (var i = 0u; i < count; i++) {
      places[i] = word_of(start + i, last, kv_head);
      scores[i] = 0.0;
    }

    for (var slice = 0u; slice < params.eights; slice += LANES) {
//#for l in LANES
      let q{{l}} = Pair(q[from_quad + 2u * (slice + {{l}}u)], q[from_quad + 2u * (slice + {{l}}u) + 1u]);
//#endfor
      for (var i = 0u; i < count; i++) {
        let key = key_eight(places[i], slice + lane);
        var s = Pair();
//#for l in LANES
        s.near += q{{l}}.near * from_lane{{l}}(key.near);
        s.far += q{{l}}.far * from_lane{{l}}(key.far);
//#endfor
        let four = s.near + s.far;
        scores[i] += (four.x + four.y) + (four.z + four.w);
      }
    }

    var peak = highest;
    for (var i = 0u; i < count; i++) {
      let seen = start + i >= own.x && start + i < own.y;
      scores[i] = select(HIDDEN, scores[i], seen);
      peak = max(peak, scores[i]);
    }
    let shrink = exp(highest - peak);
    highest = peak;
    total *= shrink;
    for (var i = 0u; i < count; i++) {
      scores[i] = exp(scores[i] - peak);
      total += scores[i];
    }

    for (var slice = 0u; slice < params.eights; slice += LANES) {
//#for l in LANES
      var o{{l}} = scaled(output_taken_up(query, kv_head, 0u, slice + {{l}}u), shrink);
//#endfor
      for (var i = 0u; i < count; i++) {
        let value = numbers(eight(places[i], slice + lane));
        let share = scores[i];
//#for l in LANES
        o{{l}}.near += share * from_lane{{l}}(value.near);
        o{{l}}.far += share * from_lane{{l}}(value.far);
//#endfor
      }
//#for l in LANES
      leave(query, kv_head, slice + {{l}}u, o{{l}});
//#endfor
    }
  }

  if (done()) {
    for (var i = 0u; i < params.eights; i++) {
      store(query, kv_head, 0u, i, output_taken_up(query, kv_head, 0u, i), total);
    }
  }
  store_state(query, kv_head, 0u, highest, total);
}
