// Sums and maxima over the {{THREADS}} threads of a workgroup; every thread gets the result. With SUBGROUPS each subgroup
// first settles its own, whatever its size.

var<workgroup> reduce_scratch: array<f32, {{THREADS}}>;

fn workgroup_sum(value: f32, thread: u32) -> f32 {
  workgroupBarrier();
//#if SUBGROUPS
  let size = subgroupAdd(1u);
  let own = subgroupAdd(value);
  if (thread % size == 0u) { reduce_scratch[thread / size] = own; }
  workgroupBarrier();
  var sum = 0.0;
  for (var i = 0u; i < {{THREADS}}u / size; i++) { sum += reduce_scratch[i]; }
  return sum;
//#else
  reduce_scratch[thread] = value;
  workgroupBarrier();
  for (var half = {{THREADS}}u / 2u; half > 0u; half /= 2u) {
    if (thread < half) { reduce_scratch[thread] += reduce_scratch[thread + half]; }
    workgroupBarrier();
  }
  return reduce_scratch[0];
//#endif
}

fn workgroup_max(value: f32, thread: u32) -> f32 {
  workgroupBarrier();
//#if SUBGROUPS
  let size = subgroupAdd(1u);
  let own = subgroupMax(value);
  if (thread % size == 0u) { reduce_scratch[thread / size] = own; }
  workgroupBarrier();
  var highest = reduce_scratch[0];
  for (var i = 1u; i < {{THREADS}}u / size; i++) { highest = max(highest, reduce_scratch[i]); }
  return highest;
//#else
  reduce_scratch[thread] = value;
  workgroupBarrier();
  for (var half = {{THREADS}}u / 2u; half > 0u; half /= 2u) {
    if (thread < half) { reduce_scratch[thread] = max(reduce_scratch[thread], reduce_scratch[thread + half]); }
    workgroupBarrier();
  }
  return reduce_scratch[0];
//#endif
}
