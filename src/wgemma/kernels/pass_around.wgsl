// from_lane0, from_lane1, …: what that thread of a subgroup of {{LANES}} holds, in every thread. Without subgroups, LANES
// is 1 and each thread keeps to its own.

//#for l in LANES
fn from_lane{{l}}(own: vec4<f32>) -> vec4<f32> {
//#if PASSED
  return subgroupBroadcast(own, {{l}}u);
//#else
  return own;
//#endif
}

//#endfor
const LANES = {{LANES}}u;
