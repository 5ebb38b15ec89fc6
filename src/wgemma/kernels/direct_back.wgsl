// dx[r, k] = Σ_n dy[r, offset + n] · W[n, k], or added to what is there; W in planes (block_{{TYPE}}.wgsl), all else f32.
//
// The way of a software adapter, in place of tile_back (see direct.wgsl): a thread does a block of 32 columns of four rows.
//
//   dy [R, stride] f32; dx [R, K] f32
//
// Grid: (K / 32 / 16, R / 4), both rounded up.

struct Params {
  blocks: u32,  // K / 32
  n: u32,       // rows of W
  rows: u32,
  stride: u32,
  offset: u32,
  add: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> dy: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<vec4<f32>>;

fn grown(sum: Block, factor: f32, w: Block) -> Block {
  return Block(
    sum.a + factor * w.a, sum.b + factor * w.b, sum.c + factor * w.c, sum.d + factor * w.d,
    sum.e + factor * w.e, sum.f + factor * w.f, sum.g + factor * w.g, sum.h + factor * w.h,
  );
}

fn store(r: u32, block: u32, sum: Block) {
  if (r >= params.rows) { return; }
  let at = (r * params.blocks + block) * 8u;
  var before = Block();
  if (params.add != 0u) {
    before = Block(
      dx[at], dx[at + 1u], dx[at + 2u], dx[at + 3u], dx[at + 4u], dx[at + 5u], dx[at + 6u], dx[at + 7u],
    );
  }
  let all = grown(before, 1.0, sum);
  dx[at] = all.a;
  dx[at + 1u] = all.b;
  dx[at + 2u] = all.c;
  dx[at + 3u] = all.d;
  dx[at + 4u] = all.e;
  dx[at + 5u] = all.f;
  dx[at + 6u] = all.g;
  dx[at + 7u] = all.h;
}

@compute @workgroup_size(16)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let block = id.x;
  if (block >= params.blocks) { return; }
  let first = 4u * id.y;
  let last = params.rows - 1u;  // rows past the end are computed as the last one, and not written
  let r0 = first * params.stride + params.offset;
  let r1 = min(first + 1u, last) * params.stride + params.offset;
  let r2 = min(first + 2u, last) * params.stride + params.offset;
  let r3 = min(first + 3u, last) * params.stride + params.offset;
  var s0 = Block();
  var s1 = Block();
  var s2 = Block();
  var s3 = Block();
  for (var n = 0u; n < params.n; n++) {
    let w = load32(n, block);
    s0 = grown(s0, dy[r0 + n], w);
    s1 = grown(s1, dy[r1 + n], w);
    s2 = grown(s2, dy[r2 + n], w);
    s3 = grown(s3, dy[r3 + n], w);
  }
  store(first, block, s0);
  store(first + 1u, block, s1);
  store(first + 2u, block, s2);
  store(first + 3u, block, s3);
}
