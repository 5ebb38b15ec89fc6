// 32 nibbles with sixteen bits of scale: two neighbouring blocks have theirs in one word.

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  q: vec4<u32>,
  halves: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  return Raw(codes[at], scales[at >> 1u], (at & 1u) * 16u);
}
