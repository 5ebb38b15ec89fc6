// q[r, head] ← softmax(q · kᵀ) v over the keys row r may see, for many rows; scale 1, all f32.
//
// The way of a software adapter, in place of attention_tile (see direct.wgsl): a thread does {{EACH}} queries, and the
// {{LANES}} threads of a subgroup go over the keys that one of them sees, {{KEYS}} at a time, with an online softmax.
// A head goes through registers in slices of 8 · LANES numbers: thread l loads the l-th eight of each key's slice, and
// the subgroup passes it around, because loads are what costs most there. Sums rest in `partial` meanwhile (CARRIED).
//
// What q, keys, values and partial are, and what a row sees, is in attention_many.wgsl.
//
// Grid: (R · heads / kv_heads / (EACH · LANES) rounded up, kv_heads); one split. D is a multiple of 8 · LANES.

//#include attention_many
//#include pass_around

const KEYS = {{KEYS}}u;

//#if F16_CACHE
fn key_eight(at: u32, i: u32) -> Pair {
//#if SEGMENTED
  if (at == ELSEWHERE) { return Pair(); }
//#endif
  return numbers(keys[at + i]);
}
//#else
fn key_eight(at: u32, i: u32) -> Pair {
//#if SEGMENTED
  if (at == ELSEWHERE) { return Pair(); }
//#endif
  return Pair(keys[at + 2u * i], keys[at + 2u * i + 1u]);
}
//#endif

fn leave(query: u32, kv_head: u32, i: u32, o: Pair) {
  if (query < params.rows * together()) { put_back(query, kv_head, 0u, i, o); }
}

@compute @workgroup_size({{LANES}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let first_query = group.x * (LANES * {{EACH}}u);
  let kv_head = group.y;
  var begin = 0xffffffffu;
  var end = 0u;
  for (var r = first_query / together(); r <= (first_query + LANES * {{EACH}}u - 1u) / together(); r++) {
    let span = span_of(r);
    begin = min(begin, span.x);
    end = max(end, span.y);
  }
  let last = max(end, 1u) - 1u;
//#for e in EACH
  let query{{e}} = first_query + {{e}}u * LANES + lane;
  let own{{e}} = span_of(query{{e}} / together());
  let from_quad{{e}} = row_and_head(min(query{{e}}, params.rows * together() - 1u), kv_head) * (params.eights * 2u);
  var highest{{e}} = LOWEST;
  var total{{e}} = 0.0;
  if (params.resumes != 0u) {
    let state = state_taken_up(query{{e}}, kv_head, 0u);
    highest{{e}} = state.x;
    total{{e}} = state.y;
  } else {
    for (var i = 0u; i < params.eights; i++) { leave(query{{e}}, kv_head, i, Pair()); }
  }
  var scores{{e}}: array<f32, KEYS>;  // later shares
//#endfor

  var places: array<u32, KEYS>;  // the first word of each key
  for (var start = begin; start < end; start += KEYS) {
    let count = min(KEYS, end - start);
    let turn = turn_at(start, last);
//#if SEGMENTED
    if (is_elsewhere(turn)) { continue; }
//#endif
    for (var i = 0u; i < count; i++) {
      places[i] = word_of(turn, start + i, last, kv_head);
//#for e in EACH
      scores{{e}}[i] = 0.0;
//#endfor
    }

    for (var slice = 0u; slice < params.eights; slice += LANES) {
//#for e in EACH
//#for l in LANES
      let q{{e}}_{{l}} = Pair(q[from_quad{{e}} + 2u * (slice + {{l}}u)], q[from_quad{{e}} + 2u * (slice + {{l}}u) + 1u]);
//#endfor
//#endfor
      for (var i = 0u; i < count; i++) {
        let key = key_eight(places[i], slice + lane);
//#for e in EACH
        var s{{e}} = Pair();
//#endfor
//#for l in LANES
        let near{{l}} = from_lane{{l}}(key.near);
        let far{{l}} = from_lane{{l}}(key.far);
//#for e in EACH
        s{{e}}.near += q{{e}}_{{l}}.near * near{{l}};
        s{{e}}.far += q{{e}}_{{l}}.far * far{{l}};
//#endfor
//#endfor
//#for e in EACH
        let four{{e}} = s{{e}}.near + s{{e}}.far;
        scores{{e}}[i] += (four{{e}}.x + four{{e}}.y) + (four{{e}}.z + four{{e}}.w);
//#endfor
      }
    }

//#for e in EACH
    var peak{{e}} = highest{{e}};
    for (var i = 0u; i < count; i++) {
//#if SEGMENTED
      let seen = start + i >= own{{e}}.x && start + i < own{{e}}.y && places[i] != ELSEWHERE;
//#else
      let seen = start + i >= own{{e}}.x && start + i < own{{e}}.y;
//#endif
      scores{{e}}[i] = select(HIDDEN, scores{{e}}[i], seen);
      peak{{e}} = max(peak{{e}}, scores{{e}}[i]);
    }
    let shrink{{e}} = exp(highest{{e}} - peak{{e}});
    highest{{e}} = peak{{e}};
    total{{e}} *= shrink{{e}};
    for (var i = 0u; i < count; i++) {
      scores{{e}}[i] = exp(scores{{e}}[i] - peak{{e}});
      total{{e}} += scores{{e}}[i];
    }
//#endfor

    for (var slice = 0u; slice < params.eights; slice += LANES) {
//#for e in EACH
//#for l in LANES
      var o{{e}}_{{l}} = scaled(output_taken_up(query{{e}}, kv_head, 0u, slice + {{l}}u), shrink{{e}});
//#endfor
//#endfor
      for (var i = 0u; i < count; i++) {
        let value = numbers(eight(places[i], slice + lane));
//#for e in EACH
        let share{{e}} = scores{{e}}[i];
//#endfor
//#for l in LANES
        let near{{l}} = from_lane{{l}}(value.near);
        let far{{l}} = from_lane{{l}}(value.far);
//#for e in EACH
        o{{e}}_{{l}}.near += share{{e}} * near{{l}};
        o{{e}}_{{l}}.far += share{{e}} * far{{l}};
//#endfor
//#endfor
      }
//#for e in EACH
//#for l in LANES
      leave(query{{e}}, kv_head, slice + {{l}}u, o{{e}}_{{l}});
//#endfor
//#endfor
    }
  }

//#for e in EACH
  if (done()) {
    for (var i = 0u; i < params.eights; i++) {
      store(query{{e}}, kv_head, 0u, i, output_taken_up(query{{e}}, kv_head, 0u, i), total{{e}});
    }
  }
  store_state(query{{e}}, kv_head, 0u, highest{{e}}, total{{e}});
//#endfor
}
