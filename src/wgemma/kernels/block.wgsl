// 32 consecutive weights of one row. The block_*.wgsl files know how they lie in memory:
//
//   fetch(row, block) -> Raw      the bytes, without looking at them, so that they can be asked for early
//   decode(raw) -> Block          the weights as eight vectors of four
//   dot32(raw, x, sum) -> f32     their product with a block of x whose elements add up to `sum`
// and with QUICK, of the types that are codes themselves, what their product with a block of bytes takes:
//
//   bytes_of(raw) -> Codes        the codes, a byte each
//   tails_of(raw) -> Tails        what they are multiplied with; as_four and from_four pack it into a vector and back
//   weighed(tails, both, scale, sums) -> f32   the product, of Σ code · byte over the first and over the last sixteen
//
// row_blocks() is K / 32 (blocks.wgsl).

struct Block {
  a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>,
  e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32>,
}

//#if QUICK
// 32 numbers as scale · signed byte, or with FINE scale · (256 · signed byte + another); `sums` are those of the first
// and of the last sixteen, as the bytes tell them.
struct Bytes {
  low: vec4<u32>,
  high: vec4<u32>,
  scale: f32,
  sums: vec2<f32>,
//#if FINE
  fine_low: vec4<u32>,
  fine_high: vec4<u32>,
//#endif
}
//#endif

//#include block_{{TYPE}}

//#if QUICK
fn dot_bytes(raw: Raw, x: Bytes) -> f32 {
  return weighed(tails_of(raw), products(bytes_of(raw), x), x.scale, x.sums);
}
//#endif

fn load32(row: u32, block: u32) -> Block {
  return decode(fetch(row, block));
}

fn dot_block(w: Block, x: Block) -> f32 {
  return dot(w.a, x.a) + dot(w.b, x.b) + dot(w.c, x.c) + dot(w.d, x.d)
    + dot(w.e, x.e) + dot(w.f, x.f) + dot(w.g, x.g) + dot(w.h, x.h);
}
