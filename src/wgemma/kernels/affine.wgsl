// Weights that are d · code + m: raw.dm holds both, `unscaled(raw)` the codes.

fn decode(raw: Raw) -> Block {
  let w = unscaled(raw);
  let d = raw.dm.x;
  let m = raw.dm.y;
  return Block(d * w.a + m, d * w.b + m, d * w.c + m, d * w.d + m, d * w.e + m, d * w.f + m, d * w.g + m, d * w.h + m);
}

fn dot32(raw: Raw, x: Block, sum: f32) -> f32 {
  return raw.dm.x * dot_block(unscaled(raw), x) + raw.dm.y * sum;
}
