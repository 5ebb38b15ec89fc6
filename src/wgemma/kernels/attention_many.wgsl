// What the kernels of attention for many rows share: attention_tile.wgsl, and attention_direct.wgsl on a software adapter.
//
//   q             [R, heads, D] f32: queries.wgsl; the final result takes their place
//   keys, values  [cache, kv_heads, D]   kv.wgsl; as vec4<u32> (eight f16) or vec4<f32>
//   partial       f32: out of every split [R, heads, splits, D], then (max, sum) [R, heads, splits, 2]. Where there are
//                 several splits or segments of the cache (CARRIED) a dispatch leaves them there, to be taken up by the
//                 next segment's and joined by attention_join.wgsl
//
// Visible to a row at t: positions p ≤ t; in sliding layers t − p < window + row.used − 1, up to row.sees instead of t.
// Where a position lies is in tables.wgsl: all rows belong to one sequence. SEGMENTED: its place may be outside
// [first, first + count), in another segment of the arena; then it has no weight in this dispatch.
//
// D is the size of a head and WORDS what a key or value takes: constants, or for attention_direct.wgsl in the uniform, so
// that one pipeline serves all layers.
//
// PACKED: the rows are whole sequences one after another, the key of row r lies at place r, and a sequence begins at
// row r − position. One split, one segment, no images; log Σ e^(q · k) of each row and head goes to partial [R, heads].

struct Params {
  heads: u32,
  kv_heads: u32,
  rows: u32,
  window: u32,     // 0: all
  table: u32,
  table_step: u32, // 0
  first: u32,      // place of this segment
  count: u32,      // places in it
  splits: u32,
  split: u32,      // keys per split
  resumes: u32,    // partial holds what earlier segments gave
  final_segment: u32,
//#if DIRECT
  eights: u32,     // D / 8
//#endif
}
//#include row
//#include tables
//#include stretch
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> keys: array<{{WORD}}>;
@group(0) @binding(4) var<storage, read> values: array<{{WORD}}>;
//#if PACKED
@group(0) @binding(5) var<storage, read_write> partial: array<f32>;
//#endif
//#if CARRIED
@group(0) @binding(5) var<storage, read_write> partial: array<vec2<f32>>;
//#endif

const LOWEST = -3.0e38;                // the highest score of nothing
const HIDDEN = -3.4e38;                // the score of what is not seen: below all others, so that its share is 0
const ELSEWHERE = 0xffffffffu;         // the first word of a key or value in another segment

struct Pair {
  near: vec4<f32>,
  far: vec4<f32>,
}

fn plus(o: Pair, share: f32, value: Pair) -> Pair {
  return Pair(o.near + share * value.near, o.far + share * value.far);
}

fn scaled(o: Pair, by: f32) -> Pair {
  return Pair(o.near * by, o.far * by);
}

// Eight of a value, as they come and as they are.
//#if F16_CACHE
alias Eight = vec4<u32>;

fn eight(at: u32, i: u32) -> Eight {
//#if SEGMENTED
  if (at == ELSEWHERE) { return vec4<u32>(); }
//#endif
  return values[at + i];
}

fn numbers(data: Eight) -> Pair {
  return Pair(
    vec4<f32>(unpack2x16float(data.x), unpack2x16float(data.y)),
    vec4<f32>(unpack2x16float(data.z), unpack2x16float(data.w)),
  );
}
//#else
alias Eight = Pair;

fn eight(at: u32, i: u32) -> Eight {
//#if SEGMENTED
  if (at == ELSEWHERE) { return Pair(); }
//#endif
  return Pair(values[at + 2u * i], values[at + 2u * i + 1u]);
}

fn numbers(data: Eight) -> Pair {
  return data;
}
//#endif

// Queries are counted row by row, and within a row by the heads that share the KV head.
fn together() -> u32 {
  return params.heads / params.kv_heads;
}

fn row_and_head(query: u32, kv_head: u32) -> u32 {
  return query / together() * params.heads + kv_head * together() + query % together();
}

// The positions a row sees (places, where they are PACKED): [begin, end).
fn span_of(r: u32) -> vec2<u32> {
  let row = row_at(min(r, params.rows - 1u));
  if (row.used == 0u || r >= params.rows) { return vec2<u32>(0xffffffffu, 0u); }
//#if PACKED
  var begin = r - row.position;
  if (params.window > 0u) { begin += max(row.position + 1u, params.window) - params.window; }
  return vec2<u32>(begin, r + 1u);
//#else
  if (params.window == 0u) { return vec2<u32>(0u, row.position + 1u); }
  let begin = max(row.position + 1u, params.window) - params.window;
  return vec2<u32>(begin - min(begin, row.used - 1u), row.sees + 1u);
//#endif
}

// Where the next 64 positions lie, as far as the last.
fn turn_at(start: u32, last: u32) -> Stretch {
//#if PACKED
  return Stretch();
//#else
  return stretch_at(start, last, params.table);
//#endif
}

// The first word of a key or value of a turn; beyond the last one the last.
fn word_of(turn: Stretch, position: u32, last: u32, kv_head: u32) -> u32 {
  var there = min(position, last);
//#if PACKED
  // Where no row has written, there may be anything; the last one is somebody's.
  there = select(there, last, row_at(there).used == 0u);
//#endif
  let place = place_in(turn, there);
//#if SEGMENTED
  if (place >= params.count) { return ELSEWHERE; }
//#endif
  return (place * params.kv_heads + kv_head) * {{WORDS}};
}

//#if CARRIED
fn done() -> bool {
  return params.splits == 1u && params.final_segment != 0u;
}

// Where `partial` has eight of a query's output, and where its state.
fn output_at(query: u32, kv_head: u32, z: u32, i: u32) -> u32 {
  return (row_and_head(query, kv_head) * params.splits + z) * ({{D}} / 2u) + i * 4u;
}

fn state_at(query: u32, kv_head: u32, z: u32) -> u32 {
  return (params.rows * params.heads * ({{D}} / 2u) + row_and_head(query, kv_head)) * params.splits + z;
}

fn output_taken_up(query: u32, kv_head: u32, z: u32, i: u32) -> Pair {
  if (query >= params.rows * together()) { return Pair(); }
  let at = output_at(query, kv_head, z, i);
  return Pair(vec4<f32>(partial[at], partial[at + 1u]), vec4<f32>(partial[at + 2u], partial[at + 3u]));
}

fn state_taken_up(query: u32, kv_head: u32, z: u32) -> vec2<f32> {
  return partial[state_at(min(query, params.rows * together() - 1u), kv_head, z)];
}

fn put_back(query: u32, kv_head: u32, z: u32, i: u32, o: Pair) {
  let at = output_at(query, kv_head, z, i);
  partial[at] = o.near.xy;
  partial[at + 1u] = o.near.zw;
  partial[at + 2u] = o.far.xy;
  partial[at + 3u] = o.far.zw;
}
//#endif

fn store(query: u32, kv_head: u32, z: u32, i: u32, o: Pair, total: f32) {
  if (query >= params.rows * together()) { return; }
//#if CARRIED
  if (!done()) {
    put_back(query, kv_head, z, i, o);
    return;
  }
//#endif
  let at = row_and_head(query, kv_head) * ({{D}} / 4u) + 2u * i;
  q[at] = o.near / max(total, 1.0e-37);
  q[at + 1u] = o.far / max(total, 1.0e-37);
}

fn store_state(query: u32, kv_head: u32, z: u32, highest: f32, total: f32) {
  if (query >= params.rows * together()) { return; }
//#if PACKED
  let unused = row_at(query / together()).used == 0u;
  partial[row_and_head(query, kv_head)] = select(highest + log(total), 0.0, unused);
//#endif
//#if CARRIED
  if (!done()) { partial[state_at(query, kv_head, z)] = vec2<f32>(highest, total); }
//#endif
}
