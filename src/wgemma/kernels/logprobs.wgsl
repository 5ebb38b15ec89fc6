// The logarithm of the probability of the token just drawn, and the most likely tokens with theirs, of each slot that
// reports them; of the model's own distribution, before bias, penalties and temperature.
//
//   logits [slots, V] f32, V rounded up to a multiple of four; peaks and sums of them (peaks.wgsl)
//   report [slots, 8, 32] (token, log-probability): the drawn token first; row p % 8 for position p
//
// One workgroup per slot. Grid: (slots).

struct Params {
  vocab: u32,
}
//#include row
//#include sampler
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> settings: array<Settings>;
@group(0) @binding(2) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> peaks: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> sums: array<f32>;
@group(0) @binding(5) var<storage, read> rows: array<Row>;
@group(0) @binding(6) var<storage, read_write> report: array<vec2<u32>>;
//#include candidates

var<workgroup> best_key: atomic<u32>;
var<workgroup> best_token: atomic<u32>;

struct Pick {
  key: u32,
  token: u32,
}

// The better of two, if it comes behind the limit: keys fall, and tokens rise among equal ones.
fn better(best: Pick, key: u32, token: u32, limit: Pick) -> Pick {
  let behind = key < limit.key || (key == limit.key && token > limit.token);
  if (behind && (key > best.key || (key == best.key && token < best.token))) { return Pick(key, token); }
  return best;
}

fn next_behind(limit: Pick, source: Source, thread: u32) -> Pick {
  if (thread == 0u) {
    atomicStore(&best_key, 0u);
    atomicStore(&best_token, NONE);
  }
  workgroupBarrier();
  var best = Pick(0u, NONE);
  if (source.kind == LISTED) {
    for (var i = thread; i < source.count; i += THREADS) { best = better(best, listed_keys[i], listed_tokens[i], limit); }
  } else {
    for (var quad = thread; quad < quads(source); quad += 4u * THREADS) {
//#for i in 4
      let l{{i}} = logits_at(quad + {{i}}u * THREADS);
//#endfor
//#for i in 4
      let k{{i}} = keys_in(l{{i}}, quad + {{i}}u * THREADS);
      for (var j = 0u; j < 4u; j++) { best = better(best, k{{i}}[j], 4u * (quad + {{i}}u * THREADS) + j, limit); }
//#endfor
    }
  }
  if (best.key > 0u) { atomicMax(&best_key, best.key); }
  workgroupBarrier();
  let key = atomicLoad(&best_key);
  if (best.key == key && key > 0u) { atomicMin(&best_token, best.token); }
  workgroupBarrier();
  let token = atomicLoad(&best_token);
  workgroupBarrier();
  return Pick(key, token);
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
//#if SUBGROUPS
  scan_lanes = me.lanes;
//#endif
  let thread = me.index;
  let slot = group.x;
  let row = rows[slot];
  let reports = settings[slot].reports;
  if (row.used == 0u || reports == 0u) { return; }
  enter(slot);
  empty_bins(thread);
  let highest = workgroup_max(value_of(own_peaks(thread).x), me);
  var sum = 0.0;
  for (var quad = thread; quad < quads(all_peaks()); quad += THREADS) {
    let keys = peaks_at(quad);
//#for i in 4
    if (keys[{{i}}] > 0u) { sum += sums[4u * (own_peak + quad) + {{i}}u] * exp(max(value_of(keys[{{i}}]), LOWEST) - highest); }
//#endfor
  }
  let logarithm = highest + log(workgroup_sum(sum, me));
  let first = (slot * RING + row.position % RING) * 32u;
  if (thread == 0u) {
    let value = logits_at(row.token / 4u)[row.token % 4u];
    report[first] = vec2<u32>(row.token, bitcast<u32>(value - logarithm));
  }
  let count = min(reports, 32u) - 1u;
  if (count == 0u) { return; }
  let bound = max(1u, threshold(all_peaks(), 1u, count, Measure(), thread));
  let source = gather(bound, thread);
  var limit = Pick(NONE, 0u);
  for (var n = 1u; n <= count; n++) {
    limit = next_behind(limit, source, thread);
    if (thread == 0u) {
      let value = value_of(max(limit.key, key_of(LOWEST)));
      report[first + n] = vec2<u32>(limit.token, bitcast<u32>(value - logarithm));
    }
  }
}
