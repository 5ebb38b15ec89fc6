// y[f, i] = wave[f · hop + i − pad]: overlapping pieces of a sound, silence where there is none.
//
//   wave [samples] f32; y [F, size] f32
//
// One thread per sample. Grid: (size / 64 rounded up, F).

struct Params {
  samples: u32,
  size: u32,
  hop: u32,
  pad: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> wave: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.size) { return; }
  let at = id.y * params.hop + id.x;
  var sample = 0.0;
  if (at >= params.pad && at - params.pad < params.samples) { sample = wave[at - params.pad]; }
  y[id.y * params.size + id.x] = sample;
}
