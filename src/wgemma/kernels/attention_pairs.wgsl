// Both ways back through attention need two dot products of a query and a key, and two numbers that follow from them:
//
//   s = q · k,  p = e^(s − lse)          how much of the value the query took
//   dp = d_out · v,  ds = p (dp − delta)  the gradient of s
//
// Four rows of ours (queries or keys) meet THEIRS rows of theirs at a time, one thread per pair and product; both come
// through workgroup memory in slices of 32 columns, and while one is worked on the next is on its way to the threads'
// registers. The kernel says where they are:
//
//   ours(product, i, word), theirs(product, i, word)   four columns of q or k (product 0), of d_out or v (product 1)
//
//   q         [R, heads, D + 4] f32    attention_prepare.wgsl
//   d_out     [R, heads, D] f32
//   keys      [R, kv_heads, D] f32     kv.wgsl (PACKED): the key of row r at place r, in pairs; values in order
//
// {{THREADS}} is a multiple of 32 and at least D / 2; D % 4 == 0.

//#include row
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<Row>;
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> d_out: array<vec4<f32>>;

const THREADS = {{THREADS}}u;
const WORDS = {{HEAD}}u / 4u;  // of one query, key or value
const OURS = 4u;
const THEIRS = THREADS / (2u * OURS);

const SLICE = 8u * 2u * (OURS + THEIRS);          // vectors
const COMING = (SLICE + THREADS - 1u) / THREADS;  // of them for one thread

// A row of 32 takes nine vectors, not eight, so that neighbouring rows meet different memory banks. Ours are first.
var<workgroup> slice: array<vec4<f32>, SLICE / 8u * 9u>;
var<workgroup> products: array<f32, THREADS>;  // [product, theirs, ours]: q · k and d_out · v, then ds and p

fn slice_part(i: u32, first: u32) -> vec4<f32> {
  let row = i / 8u;
  let word = first + i % 8u;
  if (i >= SLICE || word >= WORDS) { return vec4<f32>(); }
  if (row < 2u * OURS) { return ours(row / OURS, row % OURS, word); }
  return theirs((row - 2u * OURS) / THEIRS, (row - 2u * OURS) % THEIRS, word);
}

// Leaves the products of all pairs in `products`.
fn multiply(thread: u32) {
  let product = thread / (THREADS / 2u);
  let pair = thread % (THREADS / 2u);
  let our_row = (product * OURS + pair % OURS) * 9u;
  let their_row = (2u * OURS + product * THEIRS + pair / OURS) * 9u;
  var coming: array<vec4<f32>, COMING>;
  for (var j = 0u; j < COMING; j++) { coming[j] = slice_part(thread + THREADS * j, 0u); }
  var sum = 0.0;
  for (var first = 0u; first < WORDS; first += 8u) {
    workgroupBarrier();
    for (var j = 0u; j < COMING; j++) {
      let i = thread + THREADS * j;
      if (i < SLICE) { slice[i + i / 8u] = coming[j]; }
    }
    workgroupBarrier();
    for (var j = 0u; j < COMING; j++) { coming[j] = slice_part(thread + THREADS * j, first + 8u); }
    for (var i = 0u; i < 8u; i++) { sum += dot(slice[our_row + i], slice[their_row + i]); }
  }
  products[thread] = sum;
  workgroupBarrier();
}

// Makes ds and p of a pair's products, where the query sees the key: of the same sequence, not later, in the window.
fn weigh(pair: u32, query: u32, head: u32, key: u32) {
  let row = rows[min(query, params.rows - 1u)];
  let seen = query < params.rows && row.used != 0u && key <= query && key + row.position >= query
    && (params.window == 0u || query - key < params.window);
  let settled = q[(min(query, params.rows - 1u) * params.heads + head) * (WORDS + 1u) + WORDS];
  let share = exp(products[pair] - settled.x);
  let slope = share * (products[pair + THREADS / 2u] - settled.y);
  products[pair] = select(0.0, slope, seen);
  products[pair + THREADS / 2u] = select(0.0, share, seen);
}

fn query4(row: u32, head: u32, product: u32, word: u32) -> vec4<f32> {
  let at = min(row, params.rows - 1u) * params.heads + head;
  if (product == 0u) { return q[at * (WORDS + 1u) + word]; }
  return d_out[at * WORDS + word];
}

fn key4(row: u32, kv_head: u32, product: u32, word: u32) -> vec4<f32> {
  let at = (min(row, params.rows - 1u) * params.kv_heads + kv_head) * WORDS + word;
  if (product == 0u) { return keys[at]; }
  return values[at];
}
