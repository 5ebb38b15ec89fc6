// Which rows go to which expert, for many rows: the pairs (row · slots + slot) expert by expert, and cut into tiles.
//
//   chosen [P] u32             the expert of every pair
//   order [P] u32              the pairs of the first expert, those of the second, …; each expert's in rising order
//   tiles [P / T + E] vec4     (expert, where in `order` its pairs begin, how many these are: up to T, 0)
//
// An expert whose pairs begin at b in `order` has its tiles from b / T + e on, rounded down: there are always enough up
// to those of the next one, and what is left over has no pairs. So nobody need count the others' tiles.
//
// A workgroup of {{THREADS}} per expert looks at all pairs, each thread at a run of them, eight at a time. Grid: (E).

struct Params {
  pairs: u32,
  tall: u32,  // T
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> chosen: array<u32>;
@group(0) @binding(2) var<storage, read_write> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4<u32>>;
//#include reduce
//#include scan

fn expert_of(pair: u32) -> u32 {
  if (pair >= params.pairs) { return 0xffffffffu; }
  return chosen[pair];
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
//#if SUBGROUPS
  scan_lanes = me.lanes;
//#endif
  let expert = group.x;
  let run = ((params.pairs + {{THREADS}}u - 1u) / {{THREADS}}u + 7u) / 8u * 8u;
  let begin = thread * run;
  let end = min(begin + run, params.pairs);
  var own = 0u;
  var lower = 0u;
  for (var first = begin; first < end; first += 8u) {
//#for i in 8
    let e{{i}} = expert_of(first + {{i}}u);
//#endfor
//#for i in 8
    own += u32(e{{i}} == expert);
    lower += u32(e{{i}} < expert);
//#endfor
  }
  let sums = workgroup_before(own, thread);
  let count = sums.y;
  let start = workgroup_before(lower, thread).y;
  var at = start + sums.x;
  for (var first = begin; first < end; first += 8u) {
//#for i in 8
    let e{{i}} = expert_of(first + {{i}}u);
//#endfor
//#for i in 8
    if (e{{i}} == expert) {
      order[at] = first + {{i}}u;
      at++;
    }
//#endfor
  }
  let next = (start + count) / params.tall;
  for (var tile = (start / params.tall) + thread; tile <= next; tile += {{THREADS}}u) {
    let done = min((tile - (start / params.tall)) * params.tall, count);
    tiles[tile + expert] = vec4<u32>(expert, start + done, min(count - done, params.tall), 0u);
  }
}
