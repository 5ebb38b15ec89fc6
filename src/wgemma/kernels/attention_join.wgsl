// out[r, head] = Σₛ e^(maxₛ − max) outₛ / Σₛ e^(maxₛ − max) sumₛ: the splits of attention become one result.
//
//   partial  f32: out of every split [R, heads, splits, D], then (max, sum) [R, heads, splits, 2]
//   out      [R, heads, D] f32
//   ROUNDS: instead of `out` the same numbers in `bytes`, as to_bytes.wgsl makes them, with FINE or without
//
// A workgroup does up to 64 columns of one head of one row. A thread has four columns of every 16th split or so, four
// of them in flight, and a maximum of its own. Grid: (heads, R, D / 64 or 1).

struct Params {
  splits: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partial: array<vec4<f32>>;
//#if ROUNDS
@group(0) @binding(2) var<storage, read_write> bytes: array<vec4<u32>>;
//#include rounded_block
//#else
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
//#endif

const QUADS = {{HEAD}}u / 4u;
const COLUMNS = min(16u, QUADS);   // vectors of four
const LANES = 256u / COLUMNS;
const LOWEST = -3.0e38;

var<workgroup> sums: array<vec4<f32>, 256>;
var<workgroup> states: array<vec2<f32>, LANES>;
//#if ROUNDS
var<workgroup> results: array<f32, 64>;
//#endif

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

  let first_column = (which * QUADS + group.z * COLUMNS) * 4u;
//#if ROUNDS
  if (thread < 4u * COLUMNS) { results[thread] = joined(thread); }
  workgroupBarrier();
  if (thread >= COLUMNS / 8u) { return; }
//#for i in 8
  let at{{i}} = thread * 32u + {{i}}u * 4u;
  let x{{i}} = vec4<f32>(results[at{{i}}], results[at{{i}} + 1u], results[at{{i}} + 2u], results[at{{i}} + 3u]);
//#endfor
  put_block(first_column / 32u + thread, x0, x1, x2, x3, x4, x5, x6, x7);
//#else
  if (thread < 4u * COLUMNS) { out[first_column + thread] = joined(thread); }
//#endif
}

// What all lanes found of a column.
fn joined(column: u32) -> f32 {
  var highest = LOWEST;
  var total = 0.0;
  var sum = 0.0;
  for (var i = 0u; i < LANES; i++) { highest = max(highest, states[i].x); }
  for (var i = 0u; i < LANES; i++) {
    let share = exp(states[i].x - highest);
    total += share * states[i].y;
    sum += share * sums[i * COLUMNS + column / 4u][column % 4u];
  }
  return sum / max(total, 1.0e-37);
}
