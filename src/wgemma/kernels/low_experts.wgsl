// What adapters add to the results of the experts chosen for a row:
//
//   y[r, s, n] += Σ_j scales[r, t(n)·R + j] · z[r, s, t(n)·R + j] · b[chosen[r, s], j, n]
//
//   z [rows, slots, T·R] f32: each expert's own a times its input; b [E, R, N] f32
//   scales [rows, scale_step] f32, a step of 0 being one setting for all rows
//   chosen [rows, slots] u32; y [rows, slots, N] f32
//   t(n)  n % 2 where gate and up alternate, else 0
//
// One thread per result. Grid: (N / 64, rows, slots).

struct Params {
  n: u32,
  slots: u32,
  rank: u32,       // R
  z_stride: u32,   // T·R
  alternate: u32,
  scale_step: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> z: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let n = id.x;
  if (n >= params.n) { return; }
  let each = (id.y * params.slots) + id.z;
  let first = select(0u, (n % 2u) * params.rank, params.alternate != 0u);
  let row = chosen[each] * params.rank;
  let scale = (id.y * params.scale_step) + first;
  var sum = 0.0;
  for (var j = 0u; j < params.rank; j++) {
    sum += (scales[scale + j] * z[(each * params.z_stride) + first + j]) * b[((row + j) * params.n) + n];
  }
  y[(each * params.n) + n] += sum;
}
