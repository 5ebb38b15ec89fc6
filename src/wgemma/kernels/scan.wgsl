// Sums over the threads before each of a workgroup's {{THREADS}}. With SUBGROUPS each subgroup first settles its own,
// whatever its size; its threads stand in the order of their numbers, as everywhere.

var<workgroup> scan_scratch: array<u32, {{THREADS}}>;

// (Σ over the threads before this one, Σ over all)
fn workgroup_before(value: u32, thread: u32) -> vec2<u32> {
  workgroupBarrier();
//#if SUBGROUPS
  let size = subgroupAdd(1u);
  let own = thread / size;
  let before = subgroupExclusiveAdd(value);
  if (thread % size == size - 1u) { scan_scratch[own] = before + value; }
  workgroupBarrier();
  // Every subgroup adds up the others' sums, a thread one or a few of them.
  var sums = vec2<u32>();
  for (var i = thread % size; i < {{THREADS}}u / size; i += size) {
    let sum = scan_scratch[i];
    sums += vec2<u32>(select(0u, sum, i < own), sum);
  }
  return vec2<u32>(before + subgroupAdd(sums.x), subgroupAdd(sums.y));
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
