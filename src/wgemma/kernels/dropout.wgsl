// y[r, k] = keep · scale · x[r, k], keep being 1 where a hash of (seed, salt, r, k) is not below the threshold, else 0; with
// `add` it is added to y. The same call on a gradient is the way back. The salt tells places of a pass apart, the seed
// passes.
//
//   x, y [R, K] f32; seed [1] u32
//
// The share that is dropped is threshold / 2³², and scale 1 / (1 − that). One thread per element. Grid: (K / 256, R).

struct Params {
  count: u32,  // K
  threshold: u32,
  salt: u32,
  scale: f32,
  add: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(0) @binding(3) var<storage, read> seed: array<u32>;

fn hash(value: u32) -> u32 {
  var x = value;
  x = (x ^ (x >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.count) { return; }
  let at = id.y * params.count + id.x;
  let drawn = hash(id.x ^ hash(id.y ^ hash(seed[0] ^ hash(params.salt + 0x9e3779b9u))));
  var kept = 0.0;
  if (drawn >= params.threshold) { kept = params.scale * x[at]; }
  if (params.add != 0u) { kept += y[at]; }
  y[at] = kept;
}
