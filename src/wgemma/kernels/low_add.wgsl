// What adapters add to the results of many rows:   y[r, n] += Σ_j z[r, t(n)·R + j] · b[j, n]   (low.wgsl)
//
//   y [rows, y_stride] f32, from y_offset on
//   SOFTCAP: of the sum, cap · tanh(y / cap)
//
// A thread does one column of four rows. Grid: (N / 64, rows / 4), both rounded up.

struct Params {
  n: u32,
  rows: u32,
  y_stride: u32,
  y_offset: u32,
//#if SOFTCAP
  cap: f32,
//#endif
  rank: u32,
  z_stride: u32,
  b_stride: u32,
  low_first: u32,
  edge1: u32,
  edge2: u32,
  alternate: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> z: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
//#include low
//#if SOFTCAP
//#include softcap
//#endif

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x;
  if (n >= params.n) { return; }
  let first = 4u * id.y;
  let last = params.rows - 1u;  // rows past the end are computed as the last one, and not written
  let z0 = low_z(first, n);
  let z1 = low_z(min(first + 1u, last), n);
  let z2 = low_z(min(first + 2u, last), n);
  let z3 = low_z(min(first + 3u, last), n);
  var sums = vec4<f32>();
  for (var j = 0u; j < params.rank; j++) {
    sums += low_b(n, j) * vec4<f32>(z[z0 + j], z[z1 + j], z[z2 + j], z[z3 + j]);
  }
  for (var i = 0u; (i < 4u) && (first + i <= last); i++) {
    let at = ((first + i) * params.y_stride) + params.y_offset + n;
    var result = y[at] + sums[i];
//#if SOFTCAP
    result = softcap(result, params.cap);
//#endif
    y[at] = result;
  }
}
