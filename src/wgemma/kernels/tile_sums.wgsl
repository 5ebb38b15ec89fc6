// What a thread of tile.wgsl and tile_back.wgsl adds up: of every row of its share, eight columns in two vectors of four.

struct Sums {
  near: vec4<f32>,
  far: vec4<f32>,
}

fn grown(s: vec4<f32>, w: mat4x4<f32>, part: vec4<f32>) -> vec4<f32> {
  return s + w[0] * part.x + w[1] * part.y + w[2] * part.z + w[3] * part.w;
}

fn more(s: Sums, near: mat4x4<f32>, far: mat4x4<f32>, part: vec4<f32>) -> Sums {
  return Sums(grown(s.near, near, part), grown(s.far, far, part));
}
