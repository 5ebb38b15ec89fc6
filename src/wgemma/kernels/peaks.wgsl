// peaks[s, b] = the largest of the keys (keys.wgsl) of slot s's logits 64 b … 64 b + 63; with SUMS, for slots that
// report log-probabilities, also sums[s, b] = Σ e^(l − largest). MASKED: of the tokens that masks.wgsl allows, for slots
// that draw again.
//
//   logits [slots, V] f32, V rounded up to a multiple of four; ADJUSTED: adjusted likewise, of the slots that have it
//   peaks  [slots, V / 64] u32, V / 64 rounded up to a multiple of four; sums likewise f32; settings: sampler.wgsl
//
// One thread per block, all its loads in flight at once; workgroups are small, so that there are many.
// Grid: (V / 2048, slots).

struct Params {
  vocab: u32,
}
//#include row
//#include sampler
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> settings: array<Settings>;
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read> logits: array<vec4<f32>>;
//#if ADJUSTED
@group(0) @binding(4) var<storage, read> adjusted: array<vec4<f32>>;
//#endif
@group(0) @binding(5) var<storage, read_write> peaks: array<u32>;
//#if SUMS
@group(0) @binding(6) var<storage, read_write> sums: array<f32>;
//#endif
//#if MASKED
@group(0) @binding(7) var<storage, read> masks: array<u32>;
//#include masks
//#endif
//#include keys

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let slot = id.y;
  let first = 64u * id.x;
  if (first >= params.vocab || rows[slot].used == 0u) { return; }
//#if SUMS
  if (settings[slot].reports == 0u) { return; }
//#endif
//#if MASKED
  if (!is_forbidden(rows[slot], slot)) { return; }
//#endif
  let end = first_quad(slot + 1u) - 1u;  // the last quad
//#for i in 16
  let at{{i}} = min(first_quad(slot) + 16u * id.x + {{i}}u, end);
//#endfor
//#if ADJUSTED
  let adjusts = settings[slot].adjusts != 0u;
//#for i in 16
  var l{{i}} = vec4<f32>();
  if (adjusts) { l{{i}} = adjusted[at{{i}}]; } else { l{{i}} = logits[at{{i}}]; }
//#endfor
//#else
//#for i in 16
  let l{{i}} = logits[at{{i}}];
//#endfor
//#endif
  let left = vec4<u32>(params.vocab - first);
  let places = vec4<u32>(0u, 1u, 2u, 3u);
  var keys = vec4<u32>();
//#for i in 16
//#if MASKED
  let k{{i}} = allowed(keys_of(l{{i}}), 16u * id.x + {{i}}u, slot);
//#else
  let k{{i}} = keys_of(l{{i}});
//#endif
  keys = max(keys, select(vec4<u32>(), k{{i}}, (places + vec4<u32>(4u * {{i}}u)) < left));
//#endfor
  let peak = largest(keys);
  let own = slot * ((params.vocab + 255u) / 256u * 4u) + id.x;
  peaks[own] = peak;
//#if SUMS
  let highest = max(value_of(peak), LOWEST);
  var sum = vec4<f32>();
//#for i in 16
  sum += select(vec4<f32>(), exp(l{{i}} - vec4<f32>(highest)), (places + vec4<u32>(4u * {{i}}u)) < left);
//#endfor
  sums[own] = (sum.x + sum.y) + (sum.z + sum.w);
//#endif
}
