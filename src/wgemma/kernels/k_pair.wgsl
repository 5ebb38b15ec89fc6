// d · scale and −dmin · min of a K-quant's 32 weights: raw.halves has d and dmin, raw.pairs the (scale, min) of two
// sub-blocks, raw.shift says of which.

fn dm_of(raw: Raw) -> vec2<f32> {
  let pair = raw.pairs >> raw.shift;
  return unpack2x16float(raw.halves) * vec2<f32>(f32(pair & 0xffu), -f32((pair >> 8u) & 0xffu));
}
