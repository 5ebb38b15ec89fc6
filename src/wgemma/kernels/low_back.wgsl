// The way back through the second product of an adapter, y[r, n] += Σ_j z[r, t(n) · rank + j] · b[j, n]:
//
//   g[r, t · rank + j] = scales[t · rank + j] · Σ_{n: t(n) = t} dy[r, offset + n] · b[j, n]
//
// t(n), the target that result n belongs to, is n % 2 where `interleaved`, else (n ≥ edge1) + (n ≥ edge2).
//
//   dy [R, stride] f32; b [rank, N] f32; scales [targets · rank] f32; g [R, targets · rank] f32
//
// A workgroup of 256 does four rows and sixteen j of one target: its threads share out n, their sums are added in a fixed
// order. Grid: (targets · (rank / 16 rounded up), R / 4 rounded up).

struct Params {
  rank: u32,
  targets: u32,
  n: u32,
  stride: u32,
  offset: u32,
  edge1: u32,
  edge2: u32,
  interleaved: u32,
  rows: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> dy: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;
@group(0) @binding(4) var<storage, read_write> g: array<f32>;

// Vector 4q + r of a lane holds j = 4q … 4q + 3 of row r.
var<workgroup> parts: array<vec4<f32>, 1024>;

fn get_dy(r: u32, n: u32) -> f32 {
  if (r < params.rows) { return dy[r * params.stride + params.offset + n]; }
  return 0.0;
}

fn get_b(j: u32, n: u32) -> f32 {
  if (j < params.rank) { return b[j * params.n + n]; }
  return 0.0;
}

fn four(j: u32, n: u32) -> vec4<f32> {
  return vec4<f32>(get_b(j, n), get_b(j + 1u, n), get_b(j + 2u, n), get_b(j + 3u, n));
}

fn product(b: vec4<f32>, y: vec4<f32>) -> mat4x4<f32> {
  return mat4x4<f32>(b * y.x, b * y.y, b * y.z, b * y.w);
}

fn gather(at: u32, sums: mat4x4<f32>, fresh: bool) {
  var all = sums;
  if (!fresh) { all += mat4x4<f32>(parts[at], parts[at + 64u], parts[at + 128u], parts[at + 192u]); }
  parts[at] = all[0];
  parts[at + 64u] = all[1];
  parts[at + 128u] = all[2];
  parts[at + 192u] = all[3];
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let tiles = (params.rank + 15u) / 16u;
  let t = group.x / tiles;
  let j = group.x % tiles * 16u;
  let r = group.y * 4u;
  // The results of target t: begin, begin + step, … below end.
  var begin = t;
  var end = params.n;
  var step = 2u;
  if (params.interleaved == 0u) {
    let edges = vec4<u32>(0u, params.edge1, params.edge2, params.n);
    begin = edges[t];
    end = min(end, edges[t + 1u]);
    step = 1u;
  }
  var s0 = mat4x4<f32>();
  var s1 = mat4x4<f32>();
  var s2 = mat4x4<f32>();
  var s3 = mat4x4<f32>();
  for (var n = begin + thread * step; n < end; n += 256u * step) {
    let y = vec4<f32>(get_dy(r, n), get_dy(r + 1u, n), get_dy(r + 2u, n), get_dy(r + 3u, n));
    s0 += product(four(j, n), y);
    s1 += product(four(j + 4u, n), y);
    s2 += product(four(j + 8u, n), y);
    s3 += product(four(j + 12u, n), y);
  }
  let lane = thread % 64u;
  for (var quarter = 0u; quarter < 4u; quarter++) {
    if (thread / 64u == quarter) {
      gather(lane, s0, quarter == 0u);
      gather(lane + 256u, s1, quarter == 0u);
      gather(lane + 512u, s2, quarter == 0u);
      gather(lane + 768u, s3, quarter == 0u);
    }
    workgroupBarrier();
  }
  // Now one result for each of the first 64 threads: row `which` % 4, and j from its vector and its place in it.
  let which = thread / 4u;
  let row = r + which % 4u;
  let mine = j + which / 4u * 4u + thread % 4u;
  if (thread >= 64u || row >= params.rows || mine >= params.rank) { return; }
  var sum = 0.0;
  for (var i = 0u; i < 64u; i++) { sum += parts[which * 64u + (i ^ which)][thread % 4u]; }
  let at = t * params.rank + mine;
  g[row * params.targets * params.rank + at] = scales[at] * sum;
}
