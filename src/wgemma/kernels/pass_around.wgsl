// from_lane0, from_lane1, …: what that thread of a subgroup of {{LANES}} has, for all of them. LANES is 1 where there are no subgroups.

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
