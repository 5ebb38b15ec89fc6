// Weights that are scale · level, of IQ4_NL and IQ4_XS; scale_of(raw) gives the scale. The levels, in the file's order:
//
//   −127 −104 −83 −65   −49 −35 −22 −10   1 13 25 38   53 69 89 113
//
// Codes are numbered anew (iq4_labels.wgsl), so that the bits of all levels, as signed bytes, follow from each other in
// eight functions of three operands: GPUs often have one instruction for such a function.

//#include bit_planes
//#include one_scale

fn level_planes(q: vec4<u32>) -> Codes {
  let x = q.x;
  let y = q.y;
  let z = q.z;
  let w = q.w;
  let p7 = y ^ (z & w);
  let near = (x ^ y) & (x ^ z);
  let p0 = ~(y & (w ^ near));
  let p5 = w ^ (~x | (w & near));
  let p6 = ~(z ^ w ^ p5);
  let p2 = ~(z ^ w ^ (near & (z | w)));
  let p1 = y & (p5 | p2);
  let p3 = z ^ (p1 | (z ^ w));
  return Codes(vec4<u32>(p0, p1, p2, p3), vec4<u32>(~x, p5, p6, p7));
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
