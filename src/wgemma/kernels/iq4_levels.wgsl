// Weights that are scale · level, of IQ4_NL and IQ4_XS; scale_of(raw) gives the scale. The levels, in the file's order:
//
//   −127 −104 −83 −65   −49 −35 −22 −10   1 13 25 38   53 69 89 113
//
// Codes are numbered anew (iq4_labels.wgsl), so that the bits of all levels, as signed bytes, follow from each other in
// eight functions of three operands: GPUs often have one instruction for such a function. Hardly any of them ends with an
// inversion, because compilers move those to where they cost an instruction.

//#include bit_planes
//#include one_scale

fn level_planes(q: vec4<u32>) -> Codes {
  let x = q.x;
  let y = q.y;
  let z = q.z;
  let w = q.w;
  let near = (x ^ z) & ~(x ^ y);
  let p0 = ~(y & (w ^ near));
  let p2 = z ^ w ^ (near & (w | ~z));
  let p5 = w ^ (x | (w & near));
  let p1 = y & (p2 | p5);
  let p3 = z ^ ((z ^ w) & ~p1);
  return Codes(vec4<u32>(p0, p1, p2, p3), vec4<u32>(x, p5, z ^ w ^ p5, y ^ (w & ~z)));
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
