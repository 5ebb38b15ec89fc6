// Sums over the threads before each of a workgroup's {{THREADS}}. With SUBGROUPS each subgroup first settles its own,
// whatever its size, which `scan_lanes` must say before; its threads stand in the order of their numbers, as everywhere.
// (One subgroup operation is all this dares: with more of them, Chromium on NVIDIA's computes wrong numbers.)

var<workgroup> scan_scratch: array<u32, {{THREADS}}>;
//#if SUBGROUPS
var<private> scan_lanes: u32;
//#endif

// (Σ over the threads before this one, Σ over all)
fn workgroup_before(value: u32, thread: u32) -> vec2<u32> {
  workgroupBarrier();
//#if SUBGROUPS
  let own = thread / scan_lanes;
  var sums = vec2<u32>(subgroupExclusiveAdd(value), 0u);
  if (thread % scan_lanes == scan_lanes - 1u) { scan_scratch[own] = sums.x + value; }
  workgroupBarrier();
  for (var i = 0u; i < {{THREADS}}u / scan_lanes; i++) {
    let sum = scan_scratch[i];
    sums += vec2<u32>(select(0u, sum, i < own), sum);
  }
  return sums;
//#else
  scan_scratch[thread] = value;
  workgroupBarrier();
  for (var step = 1u; step < {{THREADS}}u; step *= 2u) {
    var sum = scan_scratch[thread];
    if (thread >= step) { sum += scan_scratch[thread - step]; }
    workgroupBarrier();
    scan_scratch[thread] = sum;
    workgroupBarrier();
  }
  return vec2<u32>(scan_scratch[thread] - value, scan_scratch[{{THREADS}}u - 1u]);
//#endif
}
