// What a thread of tile.wgsl and tile_back.wgsl adds up: of every row of its share, eight columns in two vectors of four.
//
// With HALF the factors and the sums of 32 products are f16, and are added to Totals in f32; without, sums go on from the
// totals.

//#if HALF
alias Quad = vec4<f16>;
alias Square = mat4x4<f16>;
//#else
alias Quad = vec4<f32>;
alias Square = mat4x4<f32>;
//#endif

struct Sums {
  near: Quad,
  far: Quad,
}

fn grown(s: Quad, w: Square, part: Quad) -> Quad {
  return s + w[0] * part.x + w[1] * part.y + w[2] * part.z + w[3] * part.w;
}

fn more(s: Sums, near: Square, far: Square, part: Quad) -> Sums {
  return Sums(grown(s.near, near, part), grown(s.far, far, part));
}

//#if HALF
struct Totals {
  near: vec4<f32>,
  far: vec4<f32>,
}

fn begun(t: Totals) -> Sums {
  return Sums();
}

fn settled(t: Totals, s: Sums) -> Totals {
  return Totals(t.near + vec4<f32>(s.near), t.far + vec4<f32>(s.far));
}
//#else
alias Totals = Sums;

fn begun(t: Totals) -> Sums {
  return t;
}

fn settled(t: Totals, s: Sums) -> Totals {
  return s;
}
//#endif
