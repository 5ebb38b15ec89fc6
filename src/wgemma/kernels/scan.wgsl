// Sums over the threads before each of a workgroup's {{THREADS}}. With SUBGROUPS each subgroup first settles its own,
// whatever its size, which `scan_lanes` must say before; its threads stand in the order of their numbers, as everywhere.
// (One subgroup operation is all this dares: with more of them, Chromium on NVIDIA's computed wrong numbers.)

//#if SUBGROUPS
var<private> scan_lanes: u32;
var<workgroup> scan_scratch: array<u32, {{THREADS}} / 4>;  // of every subgroup its sum, and
var<workgroup> scan_sums: array<u32, {{THREADS}} / 4>;     // that of all up to it
//#else
var<workgroup> scan_scratch: array<u32, {{THREADS}}>;
//#endif

// (Σ over the threads before this one, Σ over all)
fn workgroup_before(value: u32, thread: u32) -> vec2<u32> {
  workgroupBarrier();
//#if SUBGROUPS
  let own = thread / scan_lanes;
  let groups = {{THREADS}}u / scan_lanes;
  let before = subgroupExclusiveAdd(value);
  if (thread % scan_lanes == scan_lanes - 1u) { scan_scratch[own] = before + value; }
  workgroupBarrier();
  if (thread < groups) {
    var sum = 0u;
    for (var i = 0u; i <= thread; i++) { sum += scan_scratch[i]; }
    scan_sums[thread] = sum;
  }
  workgroupBarrier();
  return vec2<u32>(before + select(0u, scan_sums[max(own, 1u) - 1u], own > 0u), scan_sums[groups - 1u]);
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
