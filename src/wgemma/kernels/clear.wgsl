// words[i] = 0. One workgroup of 256. Grid: (1).

struct Params {
  count: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> words: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
  for (var i = thread; i < params.count; i += 256u) { words[i] = 0u; }
}
