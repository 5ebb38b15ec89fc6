// The way back through attention to its keys and values, over the rows and heads that see them (packed rows):
//
//   dk[r, kv_head] (+)= Σ_(query, head) ds · q,   dv[r, kv_head] (+)= Σ_(query, head) p · d_out
//
//   dk, dv [R, kv_heads, D] f32: dk in pairs, before the rotation is undone (kv_back.wgsl does that); dv in order.
//     With params.add they are added to: layers that share keys and values sum up what they owe to them.
//
// A workgroup does four keys of one KV head (attention_pairs.wgsl), and goes through the queries row by row, each row's
// heads in order: the same sums in the same order every time. Grid: (kv_heads, R / 4, rounded up).

struct Params {
  heads: u32,
  kv_heads: u32,
  window: u32,  // 0: all
  rows: u32,
  add: u32,
}
//#include attention_pairs
@group(0) @binding(6) var<storage, read_write> dk: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> dv: array<vec4<f32>>;

var<private> kv_head: u32;
var<private> first_key: u32;
var<private> first_pair: u32;  // of a query row and one of the heads that share the KV head, counted in this order

fn query_of(i: u32) -> u32 {
  return (first_pair + i) / (params.heads / params.kv_heads);
}

fn head_of(i: u32) -> u32 {
  let together = params.heads / params.kv_heads;
  return kv_head * together + (first_pair + i) % together;
}

fn ours(product: u32, i: u32, word: u32) -> vec4<f32> {
  return key4(first_key + i, kv_head, product, word);
}

fn theirs(product: u32, i: u32, word: u32) -> vec4<f32> {
  return query4(query_of(i), head_of(i), product, word);
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  kv_head = group.x;
  first_key = group.y * OURS;
  if (group.y * OURS >= params.rows) { return; }
  let together = params.heads / params.kv_heads;
  let last = min(group.y * OURS + OURS, params.rows) - 1u;
  var end = params.rows;
  if (params.window > 0u) { end = min(end, last + params.window); }
  let word = thread % WORDS;
  let product = thread / WORDS;  // 0: this thread sums up dk, 1: dv; beyond, nothing
  var sum0 = vec4<f32>();
  var sum1 = vec4<f32>();
  var sum2 = vec4<f32>();
  var sum3 = vec4<f32>();
  for (var first = group.y * OURS * together; first < end * together; first += THEIRS) {
    // Rows are sequence after sequence: from the first that begins behind these keys on, none sees them.
    let query = first / together;
    if (query > last + rows[query].position) { break; }
    first_pair = first;
    multiply(thread);
    if (thread < THREADS / 2u) {
      let i = thread / OURS;
      weigh(thread, query_of(i), head_of(i), first_key + thread % OURS);
    }
    workgroupBarrier();
    if (product < 2u) {
      // Four queries at a time, so that their loads do not wait for each other.
      for (var i = 0u; i < THEIRS; i += 4u) {
        for (var j = i; j < i + 4u; j++) {
          let at = product * (THREADS / 2u) + j * OURS;
          let weight = vec4<f32>(products[at], products[at + 1u], products[at + 2u], products[at + 3u]);
          // What sees none of them may be anything: it is not even multiplied by zero.
          let given = query4(query_of(j), head_of(j), product, word);
          let part = select(vec4<f32>(), given, any(weight != vec4<f32>()));
          sum0 += weight.x * part;
          sum1 += weight.y * part;
          sum2 += weight.z * part;
          sum3 += weight.w * part;
        }
      }
    }
  }
  if (product < 2u) {
    store(product, 0u, word, sum0);
    store(product, 1u, word, sum1);
    store(product, 2u, word, sum2);
    store(product, 3u, word, sum3);
  }
}

fn store(product: u32, i: u32, word: u32, sum: vec4<f32>) {
  if (first_key + i >= params.rows) { return; }
  let at = ((first_key + i) * params.kv_heads + kv_head) * WORDS + word;
  if (product == 0u) {
    dk[at] = sum + select(vec4<f32>(), dk[at], params.add != 0u);
  } else {
    dv[at] = sum + select(vec4<f32>(), dv[at], params.add != 0u);
  }
}
