// Weights in Q8_0: w = d · code, signed bytes, one d per 32.
//
//   codes  [N, K/32, 2]   vec4<u32>   32 bytes in order
//   scales [N · K/32 / 2] u32         d as f16, two neighbouring blocks to a word

//#include codes
@group(0) @binding(1) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;

struct Raw {
  low: vec4<u32>,
  high: vec4<u32>,
  halves: u32,
  shift: u32,
}

fn fetch(row: u32, block: u32) -> Raw {
  let at = row * row_blocks() + block;
  return Raw(codes[2u * at], codes[2u * at + 1u], scales[at >> 1u], (at & 1u) * 16u);
}

fn scale_of(raw: Raw) -> f32 {
  return unpack2x16float(raw.halves >> raw.shift).x;
}

// Flipping the sign bit of a signed byte makes it unsigned, 128 higher.
fn unscaled(raw: Raw) -> Block {
  return numbers(Codes(raw.low ^ vec4<u32>(0x80808080u), raw.high ^ vec4<u32>(0x80808080u)), 128.0);
}

//#include one_scale

//#if QUICK
fn bytes_of(raw: Raw) -> Codes {
  return Codes(raw.low, raw.high);
}

//#include signed
//#endif
