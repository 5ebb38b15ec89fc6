// Weights in MXFP4: w = 2^e · level, one e per 32. Levels are floats of four bits (E2M1), doubled: 0 1 2 3 4 6 8 12 and
// their opposites. Codes are numbered anew (repack_mxfp4.wgsl): of all numberings, this one needs the fewest operations
// for the bits of level + 12.
//
//   codes  [N, K/32]      vec4<u32>   four planes, bit_planes.wgsl
//   scales [N · K/32 / 2] u32         2^e as the upper half of a float, two neighbouring blocks to a word

//#include half_scale
//#include bit_planes
const OFFSET = 12.0;

fn codes_of(raw: Raw) -> Codes {
  let x = raw.q.x;
  let y = raw.q.y;
  let z = raw.q.z;
  let w = raw.q.w;
  return gathered(Codes(
    vec4<u32>(x & z, w & (x | z), y ^ (z | w), x | (z & ~w)),
    vec4<u32>(y & ~x, 0u, 0u, 0u),
  ));
}

fn scale_of(raw: Raw) -> f32 {
  return bitcast<f32>((raw.halves >> raw.shift) << 16u);
}

//#include centred
