// out[r, head] = Σₛ e^(maxₛ − max) outₛ / Σₛ e^(maxₛ − max) sumₛ: the splits of attention become one result.
//
//   partial  f32: out of every split [R, heads, splits, D], then (max, sum) [R, heads, splits, 2]
//   out      [R, heads, D] f32
//
// A workgroup does up to 64 columns of one head of one row. A thread has four columns of every 16th split or so, four
// of them in flight, and a maximum of its own. Grid: (heads, R, D / 64 or 1).

struct Params {
  splits: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const QUADS = {{HEAD}}u / 4u;
const COLUMNS = min(16u, QUADS);   // vectors of four
const LANES = 256u / COLUMNS;
const LOWEST = -3.0e38;

var<workgroup> sums: array<vec4<f32>, 256>;
var<workgroup> states: array<vec2<f32>, LANES>;

@compute @workgroup_size(256)
fn main(
  @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) thread: u32,
) {
  let which = group.y * groups.x + group.x;
  let first = which * params.splits;
  let column = group.z * COLUMNS + thread % COLUMNS;
  let lane = thread / COLUMNS;
  let pairs = groups.y * groups.x * params.splits * QUADS;
  var highest = LOWEST;
  var total = 0.0;
  var sum = vec4<f32>();
  for (var s = lane; s < params.splits; s += 4u * LANES) {
//#for i in 4
    let slot{{i}} = first + min(s + {{i}}u * LANES, params.splits - 1u);
    let sum{{i}} = partial[slot{{i}} * QUADS + column];
    let two{{i}} = partial[pairs + slot{{i}} / 2u];
    let state{{i}} = select(two{{i}}.xy, two{{i}}.zw, slot{{i}} % 2u == 1u);
//#endfor
    let peak = max(max(highest, max(state0.x, state1.x)), max(state2.x, state3.x));
    let shrink = exp(highest - peak);
    sum *= shrink;
    total *= shrink;
//#for i in 4
    let share{{i}} = select(0.0, exp(state{{i}}.x - peak), s + {{i}}u * LANES < params.splits);
    sum += share{{i}} * sum{{i}};
    total += share{{i}} * state{{i}}.y;
//#endfor
    highest = peak;
  }
  sums[thread] = sum;
  if (thread % COLUMNS == 0u) { states[lane] = vec2<f32>(highest, total); }
  workgroupBarrier();

  if (thread >= 4u * COLUMNS) { return; }
  highest = LOWEST;
  total = 0.0;
  var joined = 0.0;
  for (var i = 0u; i < LANES; i++) { highest = max(highest, states[i].x); }
  for (var i = 0u; i < LANES; i++) {
    let share = exp(states[i].x - highest);
    total += share * states[i].y;
    joined += share * sums[i * COLUMNS + thread / 4u][thread % 4u];
  }
  out[(which * QUADS + group.z * COLUMNS) * 4u + thread] = joined / max(total, 1.0e-37);
}
