// The way back through what kv.wgsl does to keys and values, and attention.wgsl to queries:
//
//   g = norm ⊙ rotate⁻¹(dk),  d_k_raw = f (g − x̂ mean(g ⊙ x̂))        with f = 1 / √(mean(k_raw²) + eps), x̂ = f k_raw
//   d_v_raw, the same with g = dv
//
//   k_raw, v_raw  [R, stride] f32, from their offsets on: kv_heads × D
//   dk, dv        [R, kv_heads, D] f32: dk in pairs (j, j + D/2), dv in order
//   d_qkv         [R, stride] f32, written at the same offsets; 0 in an unused row
//   Without OWN_V the values come from k_raw too: both gradients are added up in its place.
//   QUERIES: only dk, which are then the queries' gradients, with k_raw the queries and `kv_heads` their heads.
//
// One workgroup per (head, row). Grid: (kv_heads, R).

struct Params {
  kv_heads: u32,
  stride: u32,
  k_offset: u32,
//#if !QUERIES
  v_offset: u32,
//#endif
  eps: f32,
}
//#include row
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<Row>;
@group(0) @binding(2) var<storage, read> k_raw: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;
@group(0) @binding(4) var<storage, read> turns: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read> dk: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> d_qkv: array<f32>;
//#if !QUERIES
@group(0) @binding(7) var<storage, read> dv: array<f32>;
//#if OWN_V
@group(0) @binding(8) var<storage, read> v_raw: array<f32>;
//#endif
//#endif
//#include reduce
//#include rotary

const D = {{HEAD}}u;
const HALF = D / 2u;

var<workgroup> gradient: array<f32, D>;  // of norm ⊙ x̂, times norm

//#if !QUERIES
fn value(at: u32) -> f32 {
//#if OWN_V
  return v_raw[at];
//#else
  return k_raw[at];
//#endif
}
//#endif

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let row = rows[group.y];
  let unused = row.used == 0u;
  let k_first = group.y * params.stride + params.k_offset + group.x * D;
  let given = group.y * params.kv_heads + group.x;
  var squares = 0.0;
  var product = 0.0;
  for (var j = thread; j < HALF; j += {{THREADS}}u) {
    let turned = dk[given * HALF + j];
    let straight = rotate(turned.y, turned.x, j, row.position).yx;  // with its ends swapped, rotating turns backwards
    let low = k_raw[k_first + j];
    let high = k_raw[k_first + j + HALF];
    gradient[j] = norm[j] * straight.x;
    gradient[j + HALF] = norm[j + HALF] * straight.y;
    squares += low * low + high * high;
    product += gradient[j] * low + gradient[j + HALF] * high;
  }
  let k_factor = inverseSqrt(workgroup_sum(squares, me) / f32(D) + params.eps);
  let k_share = k_factor * k_factor * workgroup_sum(product, me) / f32(D);
//#if !QUERIES
  let v_first = group.y * params.stride + params.v_offset + group.x * D;
  squares = 0.0;
  product = 0.0;
  for (var i = thread; i < D; i += {{THREADS}}u) {
    squares += value(v_first + i) * value(v_first + i);
    product += dv[given * D + i] * value(v_first + i);
  }
  let v_factor = inverseSqrt(workgroup_sum(squares, me) / f32(D) + params.eps);
  let v_share = v_factor * v_factor * workgroup_sum(product, me) / f32(D);
//#endif
  for (var i = thread; i < D; i += {{THREADS}}u) {
    let k_part = k_factor * (gradient[i] - k_share * k_raw[k_first + i]);
//#if QUERIES
    d_qkv[k_first + i] = select(k_part, 0.0, unused);
//#else
    let v_part = v_factor * (dv[given * D + i] - v_share * value(v_first + i));
//#if OWN_V
    d_qkv[k_first + i] = select(k_part, 0.0, unused);
    d_qkv[v_first + i] = select(v_part, 0.0, unused);
//#else
    d_qkv[k_first + i] = select(k_part + v_part, 0.0, unused);
//#endif
//#endif
  }
}
