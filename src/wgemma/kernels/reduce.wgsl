// Sums and maxima over the {{THREADS}} threads of a workgroup; every thread gets the result. With SUBGROUPS each subgroup
// first settles its own, whatever its size. Two scratch areas take turns: who writes one has seen everybody arrive in
// the other, and so nobody still reads what the call before the last one left.

// Who asks: an input of every kernel that does.
struct Thread {
  @builtin(local_invocation_index) index: u32,
//#if SUBGROUPS
  @builtin(subgroup_size) lanes: u32,
//#endif
}

var<workgroup> reduce_scratch: array<f32, 2 * {{THREADS}}>;
var<private> reduce_area: u32;  // where the one in turn begins

//#if SUBGROUPS
// Every subgroup's share goes to the area in turn; says where they end. A subgroup may have room for more threads.
fn share_out(share: f32, me: Thread) -> u32 {
  let size = min(me.lanes, {{THREADS}}u);
  reduce_area = {{THREADS}}u - reduce_area;
  if (me.index % size == 0u) { reduce_scratch[reduce_area + me.index / size] = share; }
  workgroupBarrier();
  return reduce_area + {{THREADS}}u / size;
}

fn workgroup_sum(value: f32, me: Thread) -> f32 {
  let end = share_out(subgroupAdd(value), me);
  var sum = 0.0;
  for (var i = reduce_area; i < end; i++) { sum += reduce_scratch[i]; }
  return sum;
}

fn workgroup_max(value: f32, me: Thread) -> f32 {
  let end = share_out(subgroupMax(value), me);
  var highest = reduce_scratch[reduce_area];
  for (var i = reduce_area + 1u; i < end; i++) { highest = max(highest, reduce_scratch[i]); }
  return highest;
}
//#else
fn workgroup_sum(value: f32, me: Thread) -> f32 {
  reduce_area = {{THREADS}}u - reduce_area;
  let at = reduce_area + me.index;
  reduce_scratch[at] = value;
  workgroupBarrier();
  for (var half = {{THREADS}}u / 2u; half > 0u; half /= 2u) {
    if (me.index < half) { reduce_scratch[at] += reduce_scratch[at + half]; }
    workgroupBarrier();
  }
  return reduce_scratch[reduce_area];
}

fn workgroup_max(value: f32, me: Thread) -> f32 {
  reduce_area = {{THREADS}}u - reduce_area;
  let at = reduce_area + me.index;
  reduce_scratch[at] = value;
  workgroupBarrier();
  for (var half = {{THREADS}}u / 2u; half > 0u; half /= 2u) {
    if (me.index < half) { reduce_scratch[at] = max(reduce_scratch[at], reduce_scratch[at + half]); }
    workgroupBarrier();
  }
  return reduce_scratch[reduce_area];
}
//#endif
