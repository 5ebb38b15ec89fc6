// Copies bytes to where they do not fill whole words; the bytes around them stay as they are.
//
//   target[to + i] = source[start + i]   for i < size, counted in bytes
//
//   source  [words]  u32
//   target  [words]  u32
//
// A thread owns a word of the target, so no two write the same one. Grid: (words of the target that are touched / 64).

struct Params {
  start: u32,
  to: u32,
  size: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> words: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = (params.to / 4u + id.x) * 4u; // the word's first byte
  let end = params.to + params.size;
  if (first >= end) { return; }
  var word = words[first / 4u];
  for (var i = 0u; i < 4u; i++) {
    let at = first + i;
    if (at >= params.to && at < end) {
      let byte = params.start + at - params.to;
      word = insertBits(word, source[byte / 4u] >> (byte % 4u * 8u), i * 8u, 8u);
    }
  }
  words[first / 4u] = word;
}
