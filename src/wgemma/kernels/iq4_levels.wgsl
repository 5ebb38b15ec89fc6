// Weights that are scale · level, of IQ4_NL and IQ4_XS; scale_of(raw) gives the scale. The levels, in the file's order:
//
//   −127 −104 −83 −65   −49 −35 −22 −10   1 13 25 38   53 69 89 113
//
// Codes are numbered anew (iq4_labels.wgsl): of all numberings, this one needs the fewest operations for the bits of the
// levels, as signed bytes.

//#include bit_planes
//#include one_scale

fn level_planes(q: vec4<u32>) -> Codes {
  let x = q.x;
  let y = q.y;
  let z = q.z;
  let w = q.w;
  return Codes(
    vec4<u32>(~(x & ~(y ^ w)), x & (w | (z & ~y)), ~(y ^ ((x & y) | ~(w | (y & ~z)))), (x & ~y) | (~w & (y | ~z))),
    vec4<u32>(~z, w ^ (z & (x ^ (y | (w & ~x)))), y ^ (z & (x | y | w)), x ^ (y & z)),
  );
}

fn unscaled(raw: Raw) -> Block {
  let planes = level_planes(raw.q);
  return numbers(gathered(Codes(planes.low, vec4<u32>(planes.high.xyz, ~planes.high.w))), 128.0);
}

//#if QUICK
fn bytes_of(raw: Raw) -> Codes {
  return gathered(level_planes(raw.q));
}

//#include signed
//#endif
