// Turns a piece of a tensor, in the file's own blocks, into the planes the matmuls read (see the block_*.wgsl files).
// One thread does 32 weights. Rows may change their order on the way: source row i goes to
//
//   add + (i / group) · group_stride + (i % group % half) · step + i % group / half
//
// so gate and up rows can alternate, and a fused tensor of experts too. Rows outside [first, first + rows) belong to
// another part of the tensor and are passed over.
//
//   raw    [bytes]  u32   the piece, from its first byte
//   codes, scales         planes of the part: the whole of it, only the rows of this piece are written
//
// Grid: (32-weight blocks / 64). Limits: the piece holds whole rows.

struct Params {
  blocks: u32,       // of 32 weights in a row
  count: u32,        // of 32 weights in this piece
  first_row: u32,    // of the tensor, at the piece's start
  group: u32, half: u32, group_stride: u32, step: u32, add: u32,
  first: u32, rows: u32,
  row_words: u32,    // of a row in the file; a row that ends within a block is filled up with zeros (repack_words.wgsl)
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> raw: array<u32>;
@group(0) @binding(2) var<storage, read_write> codes: array<u32>;
//#if SCALES
@group(0) @binding(3) var<storage, read_write> scales: array<{{SCALE_WORD}}>;
//#endif

fn byte(at: u32) -> u32 {
  return (raw[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}

fn half_word(at: u32) -> u32 {
  return byte(at) | (byte(at + 1u) << 8u);
}

fn word(at: u32) -> u32 {
  return half_word(at) | (half_word(at + 2u) << 16u);
}

// A half as a float, subnormal ones included: hardware may flush those.
fn widen(bits: u32) -> u32 {
  let sign = (bits & 0x8000u) << 16u;
  let exponent = (bits >> 10u) & 31u;
  let mantissa = bits & 1023u;
  if (exponent == 31u) { return sign | 0x7f800000u | (mantissa << 13u); }
  if (exponent > 0u) { return sign | ((exponent + 112u) << 23u) | (mantissa << 13u); }
  return sign | bitcast<u32>(f32(mantissa) * 5.9604644775390625e-8);
}

// Part i of the nibble plane from eight codes: low nibbles are elements 0–3, high ones 4–7.
fn nibble(element: u32, code: u32) -> u32 {
  return code << ((element & 3u) * 8u + (element >> 2u) * 4u);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
//#if GRID
  hold_grid(id.x % 64u);
  workgroupBarrier();
//#endif
  if (id.x >= params.count) { return; }
  let source = params.first_row + id.x / params.blocks;
  let inner = source % params.group;
  let target_row = params.add + source / params.group * params.group_stride
    + inner % params.half * params.step + inner / params.half;
  if (target_row < params.first || target_row - params.first >= params.rows) { return; }
  repack(id.x, (target_row - params.first) * params.blocks + id.x % params.blocks);
}

//#include repack_{{TYPE}}
