// y[r, n] = Σ_k W[n, k] · x[r, k], for any number of rows r; W in planes (block_{{TYPE}}.wgsl), everything else f32.
//
// The way of a software adapter, in place of tile and matvec: a thread does four rows of W with EACH rows of x. There
// is no workgroup memory, which would be no faster there than any other and takes long to compile. Loads are what costs
// most, so the LANES threads of a subgroup load different vectors of x and pass them around.
//
//   x [R, K] f32; y [R, y_stride] f32, written from y_offset on
//   SOFTCAP  cap · tanh(y / cap)
//   SCALE    y · side[r, n]; a side_stride of 0 means one side for all rows
//   CLIPPED  as in tile.wgsl: x and y between bounds, a bias with BIAS, K that ends within its last block
//   EXPERTS  as in experts_matvec.wgsl: group.z is a slot, a thread does one row of x with one of W, two for GEGLU, and
//            loads all of both
//
// Grid: (N / (4 · THREADS), R / EACH), both rounded up; EXPERTS: (results / 64, R, slots).

struct Params {
  blocks: u32,  // K / 32, rounded up
  n: u32,       // rows of W (of one expert) in this part
//#if EXPERTS
  slots: u32,
  first_expert: u32,
  experts: u32,  // in this part
//#else
  rows: u32,
  y_stride: u32,
  y_offset: u32,
//#if CLIPPED
  x_quads: u32,  // K / 4
  first: u32,    // the row of W this part begins with
  x_min: f32,
  x_max: f32,
  y_min: f32,
  y_max: f32,
//#endif
//#if SOFTCAP
  cap: f32,
//#endif
//#if SCALE
  side_stride: u32,
//#endif
//#endif
}
@group(0) @binding(0) var<uniform> params: Params;
//#include blocks
//#include block
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
//#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
//#endif
//#if SCALE
@group(0) @binding(5) var<storage, read> side: array<f32>;
//#endif
//#if EXPERTS
@group(0) @binding(5) var<storage, read> chosen: array<u32>;
//#if WEIGHTED
@group(0) @binding(6) var<storage, read> weights: array<f32>;
//#endif
//#endif
//#if SOFTCAP
//#include softcap
//#endif
//#if GEGLU
//#include gelu
//#endif

//#if CLIPPED
fn x_quad(row: u32, quad: u32) -> vec4<f32> {
  if (quad >= params.x_quads) { return vec4<f32>(); }
  return min(max(x[row * params.x_quads + quad], vec4<f32>(params.x_min)), vec4<f32>(params.x_max));
}
//#else
fn x_quad(row: u32, quad: u32) -> vec4<f32> {
  return x[row * params.blocks * 8u + quad];
}
//#endif

//#if EXPERTS
fn x_block(row: u32, block: u32) -> Block {
  let at = block * 8u;
  return Block(
    x_quad(row, at), x_quad(row, at + 1u), x_quad(row, at + 2u), x_quad(row, at + 3u),
    x_quad(row, at + 4u), x_quad(row, at + 5u), x_quad(row, at + 6u), x_quad(row, at + 7u),
  );
}

fn product(n: u32, row: u32) -> f32 {
  var sum = 0.0;
  for (var block = 0u; block < params.blocks; block++) { sum += dot_block(load32(n, block), x_block(row, block)); }
  return sum;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) place: vec3<u32>) {
  let each = place.y * params.slots + place.z;
  let expert = chosen[each] - params.first_expert;
  if (expert >= params.experts) { return; }
  let first = expert * params.n;
//#if GEGLU
  let width = params.n / 2u;
//#else
  let width = params.n;
//#endif
  if (place.x >= width) { return; }
//#if WEIGHTED
  let result = weights[each] * product(first + place.x, each);
//#else
//#if GEGLU
  let n = first + 2u * place.x;
  let result = gelu(product(n, place.y)) * product(n + 1u, place.y);
//#else
  let result = product(first + place.x, place.y);
//#endif
//#endif
  y[each * width + place.x] = result;
}
//#else
//#include pass_around

fn quads_of(w: Block) -> array<vec4<f32>, 8> {
  return array<vec4<f32>, 8>(w.a, w.b, w.c, w.d, w.e, w.f, w.g, w.h);
}

fn more(sums: vec4<f32>, w: mat4x4<f32>, x: vec4<f32>) -> vec4<f32> {
  return sums + ((w[0] * x.x + w[1] * x.y) + (w[2] * x.z + w[3] * x.w));
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let n = vec4<u32>(group.x * 4u * {{THREADS}}u + thread) + vec4<u32>(0u, 1u, 2u, 3u) * {{THREADS}}u;
  let known = min(n, vec4<u32>(params.n - 1u));  // rows past the end are computed as the last one, and not written
  let lane = thread % LANES;
  let first = group.y * {{EACH}}u;
  let count = min({{EACH}}u, params.rows - first);
  var sums: array<vec4<f32>, {{EACH}}>;
  for (var block = 0u; block < params.blocks; block++) {
    let a = quads_of(load32(known.x, block));
    let b = quads_of(load32(known.y, block));
    let c = quads_of(load32(known.z, block));
    let d = quads_of(load32(known.w, block));
    for (var i = 0u; i < count; i++) {
//#for t in TURNS
      let x{{t}} = x_quad(first + i, block * 8u + {{t}}u * LANES + lane);
//#endfor
      var sum = sums[i];
//#for t in TURNS
//#for l in LANES
      let w{{t}}_{{l}} = transpose(mat4x4<f32>(
        a[{{t}}u * LANES + {{l}}u], b[{{t}}u * LANES + {{l}}u], c[{{t}}u * LANES + {{l}}u], d[{{t}}u * LANES + {{l}}u],
      ));
      sum = more(sum, w{{t}}_{{l}}, from_lane{{l}}(x{{t}}));
//#endfor
//#endfor
      sums[i] = sum;
    }
  }
  for (var i = 0u; i < count; i++) {
    for (var j = 0u; j < 4u; j++) {
      if (n[j] < params.n) {
        y[(first + i) * params.y_stride + params.y_offset + n[j]] = finished(first + i, n[j], sums[i][j]);
      }
    }
  }
}

fn finished(r: u32, n: u32, sum: f32) -> f32 {
  var result = sum;
//#if BIAS
  result += bias[params.first + n];
//#endif
//#if CLIPPED
  result = min(max(result, params.y_min), params.y_max);
//#endif
//#if SOFTCAP
  result = softcap(result, params.cap);
//#endif
//#if SCALE
  result *= side[r * params.side_stride + n];
//#endif
  return result;
}
//#endif
