// The gradient of one half of an adapter's pairs, added to what is there:
//
//   d[j, n] += Σ_r p[r, t(n) · rank + j] · q[r, q_offset + n]
//
// t(n), the target that column n belongs to, is n % 2 where `interleaved`, else (n ≥ edge1) + (n ≥ edge2).
//
//   B's  p is z, the first product scaled; q is dy
//   A's  p is g of low_back.wgsl, q is x; rank is that of all targets together, and the edges are beyond any n
//
//   p [R, p_stride] f32; q [R, q_stride] f32; d [rank, N] f32
//
// A workgroup of 256 does 64 columns and sixteen j; four quarters of it share out the rows, 32 at a time, and their sums
// are added in a fixed order. Grid: (N / 64, rank / 16), both rounded up.

struct Params {
  rank: u32,
  p_stride: u32,
  n: u32,
  q_stride: u32,
  q_offset: u32,
  edge1: u32,
  edge2: u32,
  interleaved: u32,
  rows: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> p: array<f32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> d: array<f32>;

// Sixteen j of every target, in four vectors each: [32 rows, 3 targets, 4].
var<workgroup> p_tile: array<vec4<f32>, 384>;
var<workgroup> parts: array<vec4<f32>, 256>;

fn target_of(n: u32) -> u32 {
  if (params.interleaved != 0u) { return n % 2u; }
  return select(0u, 1u, n >= params.edge1) + select(0u, 1u, n >= params.edge2);
}

fn get_p(r: u32, t: u32, j: u32) -> f32 {
  if (r < params.rows && j < params.rank) { return p[r * params.p_stride + t * params.rank + j]; }
  return 0.0;
}

fn get_q(r: u32, n: u32) -> f32 {
  if (r < params.rows && n < params.n) { return q[r * params.q_stride + params.q_offset + n]; }
  return 0.0;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let lane = thread % 64u;
  let quarter = thread / 64u;
  let n = group.x * 64u + lane;
  let first_j = group.y * 16u;
  let own = target_of(min(n, params.n - 1u)) * 4u;
  // The targets that these columns belong to.
  var low = target_of(group.x * 64u);
  var high = target_of(min(group.x * 64u + 63u, params.n - 1u));
  if (params.interleaved != 0u) {
    low = 0u;
    high = min(1u, params.n - 1u);
  }
  let vectors = (high - low + 1u) * 4u;
  var s0 = vec4<f32>();
  var s1 = vec4<f32>();
  var s2 = vec4<f32>();
  var s3 = vec4<f32>();
  for (var first = 0u; first < params.rows; first += 32u) {
    workgroupBarrier();
    for (var i = thread; i < 32u * vectors; i += 256u) {
      let t = low + i % vectors / 4u;
      let r = first + i / vectors;
      let j = first_j + i % 4u * 4u;
      p_tile[i / vectors * 12u + t * 4u + i % 4u] =
        vec4<f32>(get_p(r, t, j), get_p(r, t, j + 1u), get_p(r, t, j + 2u), get_p(r, t, j + 3u));
    }
    workgroupBarrier();
    for (var i = quarter * 8u; i < quarter * 8u + 8u; i++) {
      let value = get_q(first + i, n);
      let at = i * 12u + own;
      s0 += value * p_tile[at];
      s1 += value * p_tile[at + 1u];
      s2 += value * p_tile[at + 2u];
      s3 += value * p_tile[at + 3u];
    }
  }
  for (var turn = 0u; turn < 4u; turn++) {
    if (quarter == turn) {
      if (turn > 0u) {
        s0 += parts[lane];
        s1 += parts[lane + 64u];
        s2 += parts[lane + 128u];
        s3 += parts[lane + 192u];
      }
      parts[lane] = s0;
      parts[lane + 64u] = s1;
      parts[lane + 128u] = s2;
      parts[lane + 192u] = s3;
    }
    workgroupBarrier();
  }
  // Each quarter writes a vector of j.
  if (n >= params.n) { return; }
  let sum = parts[thread];
  for (var i = 0u; i < 4u; i++) {
    let j = first_j + 4u * quarter + i;
    if (j < params.rank) { d[j * params.n + n] += sum[i]; }
  }
}
