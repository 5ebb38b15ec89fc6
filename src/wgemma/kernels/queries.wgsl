// q = rotate(norm ⊙ rms(q_raw)) of every row and head, for attention_tile.wgsl.
//
//   q_raw [R, stride] f32, heads × D
//   q     [R, heads, D] f32, in pairs (j, j + D/2) as the keys have them
//
// One workgroup per (head, row). Grid: (heads, R).

struct Params {
  stride: u32,
  eps: f32,
}
//#include row
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<Row>;
@group(0) @binding(2) var<storage, read> q_raw: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> turns: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> q: array<vec2<f32>>;
//#include reduce
//#include rotary

const D = {{HEAD}}u;
const HALF = D / 2u;

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, me: Thread) {
  let thread = me.index;
  let position = rows[group.y].position;
  let first = group.y * params.stride + group.x * D;
  var squares = 0.0;
  for (var i = thread; i < D; i += {{THREADS}}u) { squares += q_raw[first + i] * q_raw[first + i]; }
  let factor = inverseSqrt(workgroup_sum(squares, me) / f32(D) + params.eps);
  let goal = (group.y * groups.x + group.x) * HALF;
  for (var j = thread; j < HALF; j += {{THREADS}}u) {
    let low = norm[j] * (factor * q_raw[first + j]);
    let high = norm[j + HALF] * (factor * q_raw[first + j + HALF]);
    q[goal + j] = rotate(low, high, j, position);
  }
}
