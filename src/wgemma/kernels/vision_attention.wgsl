// Every patch looks at every patch, head by head, without mask or scale:  q[p] ← Σ_t softmax_t(q[p] · k[t]) v[t]
//
//   q, k, v [patches, heads, H] f32; the result takes the place of q
//
// A workgroup of 128 does 64 queries of one head. Keys and values come 32 at a time through workgroup memory: first the
// scores, 4 queries × 4 keys per thread, {{SLICE}} vectors of a head at once; then their exponentials against the highest
// score so far (what was summed before shrinks when a higher one is found); then the values, {{VALUES}} keys at once,
// 4 queries × up to 4 vectors per thread. No score is kept. While a tile is worked on, what comes into it next is on its
// way to the threads' registers.
//
//   QUADS = H / 4 ≤ 32, a multiple of SLICE ≤ 4; VALUES · QUADS ≤ 512; PARTS2 … 4: QUADS is more than 8, 16, 24
//   TILE ≥ 96 · PITCH and VALUES · QUADS + 8
//
// Grid: (patches / 64, heads).

struct Params {
  patches: u32,
  heads: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;

const QUADS = {{QUADS}}u;
const SLICE = {{SLICE}}u;
const PITCH = SLICE | 1u;  // odd, so that neighbouring rows meet different memory banks
const VALUES = {{VALUES}}u;
const NOTHING = -1e30;

var<workgroup> tile: array<vec4<f32>, {{TILE}}>;  // a slice of 64 queries and 32 keys; or values
var<workgroup> shares: array<vec4<f32>, 576>;     // e^(score − highest): 64 queries × 32 keys, a pitch of 9
var<workgroup> partial: array<f32, 512>;          // of each query, from the eight threads that share it

// Up to four vectors on their way to the tile: vector j of a thread goes to place thread + 128 j.
struct Coming {
  a: vec4<f32>,
  b: vec4<f32>,
  c: vec4<f32>,
  d: vec4<f32>,
}

// Rows of a slice are the queries, then the keys: key 4c + j in row 64 + 8j + c, where thread column c finds its four.
fn slice_part(i: u32, first_query: u32, first_key: u32, head: u32, slice: u32) -> vec4<f32> {
  let row = i / SLICE;
  let quad = slice + i % SLICE;
  if (row < 64u) {
    let query = first_query + row;
    if (query < params.patches) { return q[(query * params.heads + head) * QUADS + quad]; }
  } else if (row < 96u) {
    let key = first_key + row % 8u * 4u + (row - 64u) / 8u;
    if (key < params.patches) { return k[(key * params.heads + head) * QUADS + quad]; }
  }
  return vec4<f32>();
}

fn get_slice(thread: u32, first_query: u32, first_key: u32, head: u32, slice: u32) -> Coming {
  var coming: Coming;
  coming.a = slice_part(thread, first_query, first_key, head, slice);
  if (96u * SLICE > 128u) { coming.b = slice_part(thread + 128u, first_query, first_key, head, slice); }
  if (96u * SLICE > 256u) { coming.c = slice_part(thread + 256u, first_query, first_key, head, slice); }
  return coming;
}

fn put_slice(thread: u32, coming: Coming) {
  put_slice_part(thread, coming.a);
  if (96u * SLICE > 128u) { put_slice_part(thread + 128u, coming.b); }
  if (96u * SLICE > 256u) { put_slice_part(thread + 256u, coming.c); }
}

fn put_slice_part(i: u32, part: vec4<f32>) {
  if (i < 96u * SLICE) { tile[i / SLICE * PITCH + i % SLICE] = part; }
}

fn value_part(i: u32, first_key: u32, head: u32) -> vec4<f32> {
  let key = first_key + i / QUADS;
  if (i < VALUES * QUADS && key < params.patches) { return v[(key * params.heads + head) * QUADS + i % QUADS]; }
  return vec4<f32>();
}

fn get_values(thread: u32, first_key: u32, head: u32) -> Coming {
  var coming: Coming;
  coming.a = value_part(thread, first_key, head);
  if (VALUES * QUADS > 128u) { coming.b = value_part(thread + 128u, first_key, head); }
  if (VALUES * QUADS > 256u) { coming.c = value_part(thread + 256u, first_key, head); }
  if (VALUES * QUADS > 384u) { coming.d = value_part(thread + 384u, first_key, head); }
  return coming;
}

fn put_values(thread: u32, coming: Coming) {
  put_value(thread, coming.a);
  if (VALUES * QUADS > 128u) { put_value(thread + 128u, coming.b); }
  if (VALUES * QUADS > 256u) { put_value(thread + 256u, coming.c); }
  if (VALUES * QUADS > 384u) { put_value(thread + 384u, coming.d); }
}

fn put_value(i: u32, part: vec4<f32>) {
  if (i < VALUES * QUADS) { tile[i] = part; }
}

fn grown(s: vec4<f32>, w: mat4x4<f32>, by: vec4<f32>) -> vec4<f32> {
  return s + w[0] * by.x + w[1] * by.y + w[2] * by.z + w[3] * by.w;
}

// Four queries, a column each, grown by what four keys give.
fn all_grown(o: mat4x4<f32>, w: mat4x4<f32>, by: mat4x4<f32>) -> mat4x4<f32> {
  return mat4x4<f32>(grown(o[0], w, by[0]), grown(o[1], w, by[1]), grown(o[2], w, by[2]), grown(o[3], w, by[3]));
}

fn scaled(o: mat4x4<f32>, by: vec4<f32>) -> mat4x4<f32> {
  return mat4x4<f32>(o[0] * by.x, o[1] * by.y, o[2] * by.z, o[3] * by.w);
}

// The four keys' values of one vector of the head.
fn values_at(at: u32) -> mat4x4<f32> {
  return mat4x4<f32>(tile[at], tile[at + QUADS], tile[at + 2u * QUADS], tile[at + 3u * QUADS]);
}

fn highest_of(s: vec4<f32>) -> f32 {
  return max(max(s.x, s.y), max(s.z, s.w));
}

fn partial_sum(row: u32) -> f32 {
  var sum = 0.0;
  for (var i = 0u; i < 8u; i++) { sum += partial[row * 8u + i]; }
  return sum;
}

fn partial_max(row: u32) -> f32 {
  var highest = NOTHING;
  for (var i = 0u; i < 8u; i++) { highest = max(highest, partial[row * 8u + i]); }
  return highest;
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first_query = group.x * 64u;
  let head = group.y;
  let column = thread % 8u;  // keys 4 · column … + 3 of a tile; vectors column, column + 8, … of a head
  let row = thread / 8u;     // queries row, row + 16, row + 32, row + 48
  var highest = vec4<f32>(NOTHING);
  var sum = vec4<f32>();
  var o0 = mat4x4<f32>();
//#if PARTS2
  var o1 = mat4x4<f32>();
//#endif
//#if PARTS3
  var o2 = mat4x4<f32>();
//#endif
//#if PARTS4
  var o3 = mat4x4<f32>();
//#endif
  var coming = get_slice(thread, first_query, 0u, head, 0u);
  for (var first_key = 0u; first_key < params.patches; first_key += 32u) {
    var s = mat4x4<f32>();  // scores: a column per query
    for (var slice = 0u; slice < QUADS; slice += SLICE) {
      workgroupBarrier();
      put_slice(thread, coming);
      workgroupBarrier();
      if (slice + SLICE < QUADS) {
        coming = get_slice(thread, first_query, first_key, head, slice + SLICE);
      } else {
        coming = get_values(thread, first_key, head);
      }
      for (var i = 0u; i < SLICE; i++) {
        let k_at = (64u + column) * PITCH + i;
        let q_at = row * PITCH + i;
        let keys = transpose(mat4x4<f32>(
          tile[k_at], tile[k_at + 8u * PITCH], tile[k_at + 16u * PITCH], tile[k_at + 24u * PITCH],
        ));
        let queries = mat4x4<f32>(
          tile[q_at], tile[q_at + 16u * PITCH], tile[q_at + 32u * PITCH], tile[q_at + 48u * PITCH],
        );
        s = all_grown(s, keys, queries);
      }
    }
    let there = vec4<u32>(first_key + column * 4u) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.patches);
    let s0 = select(vec4<f32>(NOTHING), s[0], there);
    let s1 = select(vec4<f32>(NOTHING), s[1], there);
    let s2 = select(vec4<f32>(NOTHING), s[2], there);
    let s3 = select(vec4<f32>(NOTHING), s[3], there);
    partial[row * 8u + column] = highest_of(s0);
    partial[(row + 16u) * 8u + column] = highest_of(s1);
    partial[(row + 32u) * 8u + column] = highest_of(s2);
    partial[(row + 48u) * 8u + column] = highest_of(s3);
    workgroupBarrier();
    let higher = max(highest, vec4<f32>(
      partial_max(row), partial_max(row + 16u), partial_max(row + 32u), partial_max(row + 48u),
    ));
    let shrink = exp(highest - higher);
    highest = higher;
    let e0 = exp(s0 - higher.x);
    let e1 = exp(s1 - higher.y);
    let e2 = exp(s2 - higher.z);
    let e3 = exp(s3 - higher.w);
    shares[row * 9u + column] = e0;
    shares[(row + 16u) * 9u + column] = e1;
    shares[(row + 32u) * 9u + column] = e2;
    shares[(row + 48u) * 9u + column] = e3;
    let one = vec4<f32>(1.0);
    sum = sum * shrink + vec4<f32>(dot(e0, one), dot(e1, one), dot(e2, one), dot(e3, one));
    o0 = scaled(o0, shrink);
//#if PARTS2
    o1 = scaled(o1, shrink);
//#endif
//#if PARTS3
    o2 = scaled(o2, shrink);
//#endif
//#if PARTS4
    o3 = scaled(o3, shrink);
//#endif
    for (var first = 0u; first < 32u; first += VALUES) {
      workgroupBarrier();
      put_values(thread, coming);
      workgroupBarrier();
      if (first + VALUES < 32u) {
        coming = get_values(thread, first_key + first + VALUES, head);
      } else {
        coming = get_slice(thread, first_query, first_key + 32u, head, 0u);
      }
      for (var i = 0u; i < VALUES; i += 4u) {
        let at_shares = row * 9u + (first + i) / 4u;
        let share = mat4x4<f32>(
          shares[at_shares], shares[at_shares + 144u], shares[at_shares + 288u], shares[at_shares + 432u],
        );
        let at = i * QUADS + column;  // beyond QUADS it is the next key's, and the result is not stored
        o0 = all_grown(o0, values_at(at), share);
//#if PARTS2
        o1 = all_grown(o1, values_at(at + 8u), share);
//#endif
//#if PARTS3
        o2 = all_grown(o2, values_at(at + 16u), share);
//#endif
//#if PARTS4
        o3 = all_grown(o3, values_at(at + 24u), share);
//#endif
      }
    }
  }
  workgroupBarrier();
  partial[row * 8u + column] = sum.x;
  partial[(row + 16u) * 8u + column] = sum.y;
  partial[(row + 32u) * 8u + column] = sum.z;
  partial[(row + 48u) * 8u + column] = sum.w;
  workgroupBarrier();
  let whole = 1.0 / vec4<f32>(partial_sum(row), partial_sum(row + 16u), partial_sum(row + 32u), partial_sum(row + 48u));
  store_all(first_query + row, head, column, scaled(o0, whole));
//#if PARTS2
  store_all(first_query + row, head, column + 8u, scaled(o1, whole));
//#endif
//#if PARTS3
  store_all(first_query + row, head, column + 16u, scaled(o2, whole));
//#endif
//#if PARTS4
  store_all(first_query + row, head, column + 24u, scaled(o3, whole));
//#endif
}

fn store_all(query: u32, head: u32, quad: u32, o: mat4x4<f32>) {
  store(query, head, quad, o[0]);
  store(query + 16u, head, quad, o[1]);
  store(query + 32u, head, quad, o[2]);
  store(query + 48u, head, quad, o[3]);
}

fn store(query: u32, head: u32, quad: u32, value: vec4<f32>) {
  if (query < params.patches && quad < QUADS) { q[(query * params.heads + head) * QUADS + quad] = value; }
}
