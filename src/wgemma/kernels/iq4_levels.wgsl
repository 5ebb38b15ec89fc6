// Weights that are scale · level, of IQ4_NL and IQ4_XS; scale_of(raw) gives the scale. The levels, in the file's order:
//
//   −127 −104 −83 −65   −49 −35 −22 −10   1 13 25 38   53 69 89 113
//
// Codes are numbered anew (iq4_labels.wgsl): of all numberings, this one needs the fewest operations for the bits of
// level + 127.

//#include bit_planes
//#include one_scale

fn level_planes(q: vec4<u32>) -> Codes {
  let x = q.x;
  let y = q.y;
  let z = q.z;
  let w = q.w;
  return Codes(
    vec4<u32>(~((x ^ y) | (x ^ w)), w & (x | y) & ~z, w | ~(x | z), ~(x ^ w ^ (y | ~(x | z)))),
    vec4<u32>(y, ~(x ^ (z & w & (y | ~x))), z ^ (x & ~y & (z | w)), w ^ (y | ~z)),
  );
}

fn unscaled(raw: Raw) -> Block {
  return numbers(gathered(level_planes(raw.q)), 127.0);
}

//#if QUICK
// level − 1, a signed byte
fn bytes_of(raw: Raw) -> Codes {
  let planes = level_planes(raw.q);
  return gathered(Codes(planes.low, vec4<u32>(planes.high.xyz, ~planes.high.w)));
}

fn weighed(tails: Tails, both: vec2<i32>, scale: f32, sums: vec2<f32>) -> f32 {
  return tails.x * (scale * f32(both.x + both.y) + (sums.x + sums.y));
}
//#endif
