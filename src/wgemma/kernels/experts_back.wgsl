// The way back through the product with the experts chosen for a row:
//
//   dx[r, slot, k] (+)= Σ_n dy[n] · W[chosen[r, slot]][n, k]      W in planes (block_{{TYPE}}.wgsl), everything else f32
//
//   dy [R, N] f32, with PER_SLOT [R, slots, N]; chosen [R, slots] u32; dx [R, slots, K] f32
//   A part of the matrix has `experts` whole experts from first_expert on; what other parts have is left alone.
//   With params.add dx is added to: gate and up of two types sum up.
//
// A workgroup of 128 does eight blocks of 32 columns of one (r, slot); sixteen threads share a block, every sixteenth
// row of W each, and add up in the end. Grid: (K / 32 / 8 rounded up, R, slots).

struct Params {
  blocks: u32,  // K / 32
  n: u32,       // rows of W of one expert
  slots: u32,
  first_expert: u32,
  experts: u32,  // in this part
  add: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read> chosen: array<u32>;
@group(0) @binding(5) var<storage, read_write> dx: array<vec4<f32>>;

const BLOCKS = 8u;
const LANES = 16u;

var<workgroup> sums: array<vec4<f32>, 4u * BLOCKS * LANES>;  // [lane, block, 4]

// Half a block's columns, from all lanes: to dx, from vector `at` of the workgroup's first block on.
fn settle(thread: u32, at: u32, first_block: u32, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) {
  workgroupBarrier();
  sums[4u * thread] = a;
  sums[4u * thread + 1u] = b;
  sums[4u * thread + 2u] = c;
  sums[4u * thread + 3u] = d;
  workgroupBarrier();
  let block = thread / 4u;
  if (block >= BLOCKS || first_block + block >= params.blocks) { return; }
  var sum = vec4<f32>();
  for (var lane = 0u; lane < LANES; lane++) { sum += sums[4u * (lane * BLOCKS + block) + thread % 4u]; }
  let goal = at + 8u * block + thread % 4u;
  dx[goal] = sum + select(vec4<f32>(), dx[goal], params.add != 0u);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let which = group.y * params.slots + group.z;
  let expert = chosen[which] - params.first_expert;
  if (expert >= params.experts) { return; }
//#if PER_SLOT
  let given = which * params.n;
//#else
  let given = group.y * params.n;
//#endif
  let first_block = group.x * BLOCKS;
  let block = min(first_block + thread % BLOCKS, params.blocks - 1u);  // those past the end are not written
  var s = Block();
  for (var n = thread / BLOCKS; n < params.n; n += LANES) {
    let w = load32(expert * params.n + n, block);
    let y = dy[given + n];
    s = Block(
      s.a + y * w.a, s.b + y * w.b, s.c + y * w.c, s.d + y * w.d,
      s.e + y * w.e, s.f + y * w.f, s.g + y * w.g, s.h + y * w.h,
    );
  }
  let at = 8u * (which * params.blocks + first_block);
  settle(thread, at, first_block, s.a, s.b, s.c, s.d);
  settle(thread, at + 4u, first_block, s.e, s.f, s.g, s.h);
}
