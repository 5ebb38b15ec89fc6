// x[i] ← x[i] · sigmoid(x[i]), in place.
//
//   x [count] f32
//
// One thread per value. Grid: (count / 256 rounded up).

struct Params {
  count: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
//#include sigmoid

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < params.count) { x[id.x] *= sigmoid(x[id.x]); }
}
