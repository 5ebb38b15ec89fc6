// peaks[b] = the largest of the keys (keys.wgsl) of logits 64 b … 64 b + 63; with SUMS also sums[b] = Σ e^(l − largest)
//
//   logits [V] f32, with room for a multiple of four; peaks [V / 64, rounded up] u32; sums likewise f32
//
// One thread per block, all its loads in flight at once; workgroups are small, so that there are many. Grid: (V / 2048).

struct Params {
  vocab: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> peaks: array<u32>;
//#if SUMS
@group(0) @binding(3) var<storage, read_write> sums: array<f32>;
//#endif
//#include keys

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = 64u * id.x;
  if (first >= params.vocab) { return; }
  let end = (params.vocab + 3u) / 4u - 1u;  // the last quad
//#for i in 16
  let l{{i}} = logits[min(16u * id.x + {{i}}u, end)];
//#endfor
  let left = vec4<u32>(params.vocab - first);
  let places = vec4<u32>(0u, 1u, 2u, 3u);
  var keys = vec4<u32>();
//#for i in 16
  keys = max(keys, select(vec4<u32>(), keys_of(l{{i}}), (places + vec4<u32>(4u * {{i}}u)) < left));
//#endfor
  let peak = largest(keys);
  peaks[id.x] = peak;
//#if SUMS
  let highest = max(value_of(peak), LOWEST);
  var sum = vec4<f32>();
//#for i in 16
  sum += select(vec4<f32>(), exp(l{{i}} - vec4<f32>(highest)), (places + vec4<u32>(4u * {{i}}u)) < left);
//#endfor
  sums[id.x] = (sum.x + sum.y) + (sum.z + sum.w);
//#endif
}
