// Reads all of `words` once and does next to nothing with it: how fast this GPU streams memory, for `wgemma bench`.
//
//   words [2048 · groups] vec4<u32>
//   found [1] u32          set when a thread's sum is all ones, so that no compiler may leave the reading out
//
// A workgroup of 256 takes 2048 words in a row, eight to a thread, neighbours next to each other. Grid: (groups).

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = 2048u * group.x + thread;
  var sum = vec4<u32>();
  for (var i = 0u; i < 8u; i++) { sum += words[first + 256u * i]; }
  if (sum.x + sum.y + sum.z + sum.w == 0xffffffffu) { found[0] = 1u; }
}
