// Sums over the {{THREADS}} threads of a workgroup; every thread gets the result.

var<workgroup> reduce_scratch: array<f32, {{THREADS}}>;

fn workgroup_sum(value: f32, thread: u32) -> f32 {
  workgroupBarrier();
  reduce_scratch[thread] = value;
  workgroupBarrier();
  for (var half = {{THREADS}}u / 2u; half > 0u; half /= 2u) {
    if (thread < half) { reduce_scratch[thread] += reduce_scratch[thread + half]; }
    workgroupBarrier();
  }
  return reduce_scratch[0];
}

fn workgroup_max(value: f32, thread: u32) -> f32 {
  workgroupBarrier();
  reduce_scratch[thread] = value;
  workgroupBarrier();
  for (var half = {{THREADS}}u / 2u; half > 0u; half /= 2u) {
    if (thread < half) { reduce_scratch[thread] = max(reduce_scratch[thread], reduce_scratch[thread + half]); }
    workgroupBarrier();
  }
  return reduce_scratch[0];
}
