// Keys and values of each row, normalised, the keys rotated, into the cache:
//
//   k = rotate(norm ⊙ rms(k_raw)),  v = rms(v_raw)
//
// Elements j and j + D/2 of a key lie side by side in the cache (the order does not matter to a dot product, and rotary
// pairs stay together); values keep their order.
//
//   k_raw, v_raw  [R, stride] f32, from their offsets on: kv_heads × D
//   keys, values  [cache, kv_heads, D/2]   two numbers per element: u32 (two f16) or vec2<f32>
//   A row goes to its place (tables.wgsl), if that lies in this segment of the arena, [first, first + count);
//   PACKED: row r goes to place r.
//
// One workgroup per (kv head, row). Grid: (kv_heads, R).

struct Params {
  kv_heads: u32,
  stride: u32,
  k_offset: u32,
  v_offset: u32,
  table: u32,
  table_step: u32,
  first: u32,
  count: u32,
  eps: f32,
}
//#include row
//#include tables
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> rows: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> k_raw: array<f32>;
//#if OWN_V
@group(0) @binding(3) var<storage, read> v_raw: array<f32>;
//#endif
@group(0) @binding(4) var<storage, read> norm: array<f32>;
@group(0) @binding(5) var<storage, read> turns: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> keys: array<{{PAIR}}>;
@group(0) @binding(7) var<storage, read_write> values: array<{{PAIR}}>;
//#include reduce
//#include rotary

const HALF = {{HEAD}}u / 2u;

fn value(at: u32) -> f32 {
//#if OWN_V
  return v_raw[at];
//#else
  return k_raw[at];
//#endif
}

fn pair_of(numbers: vec2<f32>) -> {{PAIR}} {
//#if F16_CACHE
  return pack2x16float(numbers);
//#else
  return numbers;
//#endif
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
  let thread = me.index;
  let row = row_at(group.y);
//#if PACKED
  let place = group.y;
//#else
  var place = 0xffffffffu;  // asked for before the sums, so that they hide the wait
  if (row.used != 0u) { place = place_of(row.position, table_of(group.y)) - params.first; }
//#endif
  let k_first = group.y * params.stride + params.k_offset + group.x * {{HEAD}}u;
  let v_first = group.y * params.stride + params.v_offset + group.x * {{HEAD}}u;
  var k_sum = 0.0;
  var v_sum = 0.0;
  for (var i = thread; i < {{HEAD}}u; i += {{THREADS}}u) {
    k_sum += k_raw[k_first + i] * k_raw[k_first + i];
    v_sum += value(v_first + i) * value(v_first + i);
  }
  let k_factor = inverseSqrt(workgroup_sum(k_sum, me) / {{HEAD}}.0 + params.eps);
  let v_factor = inverseSqrt(workgroup_sum(v_sum, me) / {{HEAD}}.0 + params.eps);
  if (row.used == 0u || place >= params.count) { return; }
  let goal = (place * params.kv_heads + group.x) * HALF;
  for (var j = thread; j < HALF; j += {{THREADS}}u) {
    let low = norm[j] * (k_factor * k_raw[k_first + j]);
    let high = norm[j + HALF] * (k_factor * k_raw[k_first + j + HALF]);
    keys[goal + j] = pair_of(rotate(low, high, j, row.position));
    values[goal + j] = pair_of(v_factor * vec2<f32>(value(v_first + 2u * j), value(v_first + 2u * j + 1u)));
  }
}
