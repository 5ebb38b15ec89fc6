// An adapter's z, made by the dispatch that needs it: its first workgroups do, and the others, once they have done
// everything else, wait for what is not there yet. What z is, low_project.wgsl says; here all rows have one setting.
//
//   z [R, N, shares]  the bits of f32, cleared beforehand: 0 is what is not there yet, and so a zero is told as −0
//   a [N, K] f32; low_scales [N] f32
//
// This is for devices that begin workgroups in the order of their numbers (gpu/device.py: in_order), so that who waits
// knows the others to be at work. A number at a time goes from one to another, and so atomics are all it takes.

@group(0) @binding(9) var<storage, read_write> z: array<atomic<u32>>;
@group(0) @binding(11) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(12) var<storage, read> low_scales: array<f32>;
//#if !MADE
//#include low_share
//#endif

const PATIENCE = 1u << 26u;  // far more than it ever takes, and yet an end

fn told(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  return select(bits, 0x80000000u, bits == 0u);
}

// The work of one of the first: N · shares of them, or N where x is MADE, whose z lies in the first share then.
fn make_z(group: vec3<u32>, me: Thread) {
//#if MADE
  let n = group.x;
  let quads = row_blocks() * 8u;
  var sum = 0.0;
//#for j in PAIRS
  let i{{j}} = 2u * (me.index + {{j}}u * {{THREADS}}u);
  if (i{{j}} < quads) { sum += dot(a[n * quads + i{{j}}], near{{j}}) + dot(a[n * quads + i{{j}} + 1u], far{{j}}); }
//#endfor
  let total = workgroup_sum(low_scales[n] * sum, me);
  let at = group.y * params.z_stride + n * {{SHARES}}u;
  if (me.index < {{SHARES}}u) { atomicStore(&z[at + me.index], told(select(0.0, total, me.index == 0u))); }
//#else
  let n = group.x / {{SHARES}}u;
  let sum = low_share(n, group.y, group.x % {{SHARES}}u, {{SHARES}}u, me.index);
  let total = workgroup_sum(low_scales[n] * sum, me);
  if (me.index == 0u) { atomicStore(&z[group.y * params.z_stride + group.x], told(total)); }
//#endif
}

// A number of z, as soon as it is there; NaN if it never comes. Asked for again as if to change it, since a compiler may
// take a load out of a loop.
fn met(at: u32) -> f32 {
  var bits = atomicLoad(&z[at]);
  for (var tries = 0u; bits == 0u && tries < PATIENCE; tries++) { bits = atomicOr(&z[at], 0u); }
  return bitcast<f32>(select(bits, 0x7fc00000u, bits == 0u));
}
