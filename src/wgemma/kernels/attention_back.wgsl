// The way back through attention to its queries:   dq[r, head] = Σ_key ds · k   over the keys row r sees (packed rows)
//
//   dq [R, heads, D] f32, in pairs, before the rotation is undone (kv_back.wgsl does that); 0 in an unused row
//
// A workgroup does four rows of one head (attention_pairs.wgsl). Grid: (heads, R / 4, rounded up).

struct Params {
  heads: u32,
  kv_heads: u32,
  window: u32,  // 0: all
  rows: u32,
}
//#include attention_pairs
@group(0) @binding(6) var<storage, read_write> dq: array<vec4<f32>>;

var<private> head: u32;
var<private> kv_head: u32;
var<private> first_query: u32;
var<private> first_key: u32;

fn ours(product: u32, i: u32, word: u32) -> vec4<f32> {
  return query4(first_query + i, head, product, word);
}

fn theirs(product: u32, i: u32, word: u32) -> vec4<f32> {
  return key4(first_key + i, kv_head, product, word);
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  head = group.x;
  kv_head = head * params.kv_heads / params.heads;
  first_query = group.y * OURS;
  let end = min(group.y * OURS + OURS, params.rows);
  // The first key that one of the four sees.
  var begin = end;
  for (var r = group.y * OURS; r < end; r++) {
    let back = select(rows[r].position, min(rows[r].position, params.window - 1u), params.window > 0u);
    if (rows[r].used != 0u) { begin = min(begin, r - back); }
  }
  let word = thread % WORDS;
  let own = 2u * (thread / WORDS);  // the two queries whose sums this thread has; beyond four it has none
  var low = vec4<f32>();
  var high = vec4<f32>();
  for (var first = begin; first < end; first += THEIRS) {
    first_key = first;
    multiply(thread);
    if (thread < THREADS / 2u) { weigh(thread, first_query + thread % OURS, head, first_key + thread / OURS); }
    workgroupBarrier();
    if (own < OURS) {
      // Four keys at a time, so that their loads do not wait for each other.
      for (var i = 0u; i < THEIRS; i += 4u) {
        for (var j = i; j < i + 4u; j++) {
          let slope = vec2<f32>(products[j * OURS + own], products[j * OURS + own + 1u]);
          // What nobody sees may be anything: it is not even multiplied by zero.
          let k = select(vec4<f32>(), key4(first_key + j, kv_head, 0u, word), any(slope != vec2<f32>()));
          low += slope.x * k;
          high += slope.y * k;
        }
      }
    }
  }
  if (own < OURS) {
    let at = ((first_query + own) * params.heads + head) * WORDS + word;
    if (first_query + own < params.rows) { dq[at] = low; }
    if (first_query + own + 1u < params.rows) { dq[at + params.heads * WORDS] = high; }
  }
}
