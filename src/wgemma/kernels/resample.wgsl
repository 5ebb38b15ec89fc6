// y[i] = ratio · Σ_j mean(x[j]) · sinc((j − t_i) · ratio),  t_i = (start + i · step) / parts: a piece of a sound at
// another rate, its channels averaged. The sinc is windowed and lies in a table; between entries it is a straight line.
//
//   x     [frames, channels] f32: what this piece needs of the sound, silence beyond
//   table [zeros · fineness + 2] f32: the right half of the sinc, `fineness` entries from one zero to the next, then zeros
//   y     [count] f32
//
// One thread per sample. Grid: (count / 64 rounded up). Limits: start + count · step < 2³².

struct Params {
  count: u32,
  frames: u32,
  channels: u32,
  start: u32,
  step: u32,
  parts: u32,
  reach: u32,  // frames on either side within the table
  zeros: u32,
  fineness: u32,
  ratio: f32,  // how much slower the sinc is than the frames: 1, or less where the rate falls
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> table: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn sinc(t: f32) -> f32 {
  let place = min(abs(t), f32(params.zeros)) * f32(params.fineness);
  let at = u32(place);
  return mix(table[at], table[at + 1u], place - f32(at));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= params.count) { return; }
  let place = params.start + id.x * params.step;
  let centre = place / params.parts;
  let beyond = f32(place % params.parts) / f32(params.parts);
  let first = max(centre, params.reach) - params.reach;
  let last = min(centre + params.reach + 1u, params.frames - 1u);
  var sum = 0.0;
  for (var j = first; j <= last; j++) {
    var mean = 0.0;
    for (var c = 0u; c < params.channels; c++) { mean += x[j * params.channels + c]; }
    sum += mean * sinc((f32(i32(j) - i32(centre)) - beyond) * params.ratio);
  }
  y[id.x] = sum * params.ratio / f32(params.channels);
}
