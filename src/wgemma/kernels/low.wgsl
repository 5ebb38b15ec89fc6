// Where an adapter's share of result n lies: Σ_j z[low_z(r, n) + j] · low_b(n, j)
//
//   z [rows, z_stride] f32, T·R of each in use; b [R, b_stride] f32, a column for each result of all the matrices that
//   share the input; those multiplied here begin at column low_first
//   target of a column: its parity where two alternate, else how many of the two edges lie at or before it

fn low_z(r: u32, n: u32) -> u32 {
  let at = params.low_first + n;
  let which = select(u32(at >= params.edge1) + u32(at >= params.edge2), at % 2u, params.alternate != 0u);
  return (r * params.z_stride) + (which * params.rank);
}

fn low_b(n: u32, j: u32) -> f32 {
  return b[(j * params.b_stride) + params.low_first + n];
}
