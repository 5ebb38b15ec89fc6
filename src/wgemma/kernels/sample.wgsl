// Draws the next token from logits l, in this order: the top_k largest; of these the shortest prefix, in falling order,
// whose probabilities reach top_p; of these those with l ≥ max + ln(min_p); then with probability ∝ e^(l / T).
// Exact for any V: thresholds are found digit by digit over order-preserving keys, counts and probabilities summed as
// integers, so the outcome does not depend on the order of addition. Equal logits stay or go together. The random number
// is a hash of the seed and the position, so a step can be repeated. MASKED: for slots whose token is forbidden, draws
// once more, by another number (masks.wgsl).
//
//   logits [slots, V] f32, V rounded up to a multiple of four; ADJUSTED: adjusted likewise, of the slots that have it;
//   peaks of either (peaks.wgsl); rows and the page tables behind them (tables.wgsl); the rest in sampler.wgsl.
//   Writes each slot's result, its sequence's past, and its row for the next step.
//
// One workgroup per slot, which looks at few logits where top_k or min_p let it (candidates.wgsl). Grid: (slots).

struct Params {
  vocab: u32,
  context: u32,     // positions that have a place in the history
  table: u32,
  table_step: u32,
}
//#include row
//#include sampler
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> settings: array<Settings>;
@group(0) @binding(2) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> peaks: array<vec4<u32>>;
//#if ADJUSTED
@group(0) @binding(4) var<storage, read> adjusted: array<vec4<f32>>;
//#endif
@group(0) @binding(5) var<storage, read_write> rows: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> history: array<u32>;
@group(0) @binding(7) var<storage, read_write> results: array<Result>;
//#if MASKED
@group(0) @binding(8) var<storage, read> masks: array<u32>;
//#endif
//#include tables
//#include candidates

var<workgroup> own_row: Row;
var<workgroup> winning_block: atomic<u32>;
var<workgroup> winner: atomic<u32>;
var<workgroup> bad: atomic<u32>;
//#if MASKED
var<workgroup> spared: u32;  // the threshold that is kept; 0: none
//#endif

// The largest logit's index (the lowest of equals): in the first block with that peak.
fn argmax(highest: u32, thread: u32) -> u32 {
  if (thread == 0u) {
    atomicStore(&winning_block, NONE);
    atomicStore(&winner, NONE);
  }
  workgroupBarrier();
  for (var quad = thread; quad < quads(all_peaks()); quad += THREADS) {
    let best = lowest(peaks_at(quad) == vec4<u32>(highest), quad);
    if (best != NONE) { atomicMin(&winning_block, best); }
  }
  workgroupBarrier();
  let block = atomicLoad(&winning_block);
  if (thread < 16u && block != NONE) {
    let quad = 16u * block + thread;
    let best = lowest(keys_in(logits_at(quad), quad) == vec4<u32>(highest), quad);
    if (best != NONE) { atomicMin(&winner, best); }
  }
  workgroupBarrier();
  return atomicLoad(&winner);
}

// The first place of a quad that was hit.
fn lowest(hits: vec4<bool>, quad: u32) -> u32 {
  let places = select(vec4<u32>(NONE), four(4u * quad), hits);
  return min(min(places.x, places.y), min(places.z, places.w));
}

fn power(key: u32, least: u32, highest: f32, temperature: f32) -> f32 {
  return select(0.0, exp((value_of(key) - highest) / temperature), key >= least);
}

// Σ e^((l − highest) / temperature) over keys ≥ least (> 0)
fn total_of(source: Source, least: u32, highest: f32, temperature: f32, me: Thread) -> f32 {
  let thread = me.index;
  var sum = 0.0;
  if (source.kind == LISTED) {
    for (var i = thread; i < source.count; i += THREADS) { sum += power(listed_keys[i], least, highest, temperature); }
  } else {
    for (var quad = thread; quad < quads(source); quad += 4u * THREADS) {
//#for i in 4
      let l{{i}} = logits_at(quad + {{i}}u * THREADS);
//#endfor
//#for i in 4
      let k{{i}} = keys_in(l{{i}}, quad + {{i}}u * THREADS);
      for (var j = 0u; j < 4u; j++) { sum += power(k{{i}}[j], least, highest, temperature); }
//#endfor
    }
  }
  return workgroup_sum(sum, me);
}

fn hash(value: u32) -> u32 {
  var x = value;
  x = (x ^ (x >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}

// Uniform in [0, 1), the same for the same seed and position.
fn random(position: u32) -> f32 {
  let seed = hash(settings[own_slot].seed_low ^ hash(settings[own_slot].seed_high + 0x9e3779b9u));
//#if MASKED
  let mixed = hash(hash(position ^ seed) + 0x9e3779b9u);
//#else
  let mixed = hash(position ^ seed);
//#endif
  return f32(mixed >> 8u) / 16777216.0;
}

fn put(key: u32, token: u32, least: u32, begin: u32, end: u32, measure: Measure) {
  if (key < least || token < begin || token >= end) { return; }
  let part = weight(key, measure);
  if (part > 0u) { atomicAdd(&bins[(token - begin) / ((end - begin + 255u) / 256u)], part); }
}

// Draws among keys ≥ least (> 0). Probabilities are integers and stand in the order of their tokens, so that the number
// of threads makes no difference: first the 256th of the vocabulary is found that holds the random number, then the
// 256th of that, until one token is left.
fn draw(source: Source, least: u32, measure: Measure, position: u32, thread: u32) -> u32 {
  var begin = 0u;
  var end = params.vocab;
  var goal = 0u;
  while (end > begin + 1u) {
    if (source.kind == LISTED) {
      for (var i = thread; i < source.count; i += THREADS) {
        put(listed_keys[i], listed_tokens[i], least, begin, end, measure);
      }
    } else {
      for (var quad = begin / 4u + thread; quad < (end + 3u) / 4u; quad += 4u * THREADS) {
//#for i in 4
        let l{{i}} = logits_at(quad + {{i}}u * THREADS);
//#endfor
//#for i in 4
        let k{{i}} = keys_in(l{{i}}, quad + {{i}}u * THREADS);
        for (var j = 0u; j < 4u; j++) {
          put(k{{i}}[j], 4u * (quad + {{i}}u * THREADS) + j, least, begin, end, measure);
        }
//#endfor
      }
    }
    let sums = summed_bins(thread);
    if (end - begin == params.vocab) { goal = min(u32(random(position) * f32(sums.z)), max(sums.z, 1u) - 1u); }
    let place = find(goal, sums, thread);
    goal -= place.before;
    let width = (end - begin + 255u) / 256u;
    begin += place.bin * width;
    end = min(end, begin + width);
  }
  return begin;
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Thread) {
//#if SUBGROUPS
  scan_lanes = me.lanes;
//#endif
  let thread = me.index;
  let slot = group.x;
  if (thread == 0u) {
    own_row = row_at(slot);
//#if MASKED
    let before = results[slot * RING + own_row.position % RING];
    if (before.bad != 0u || !is_forbidden(own_row, slot)) { own_row.used = 0u; }
    spared = before.threshold;
//#endif
  }
  let row = workgroupUniformLoad(&own_row);
  if (row.used == 0u) { return; }
//#if MASKED
  let position = row.position;
//#else
  let position = row.position + 1u;
//#endif
  var wanted = settings[slot];
  enter(slot);
  empty_bins(thread);
  if (thread == 0u) { atomicStore(&bad, 0u); }
  let own = own_peaks(thread);
  let highest = workgroup_max(value_of(own.x), me);
  if (own.y >= INFINITE) { atomicStore(&bad, 1u); }

  var least = key_of(highest);
  var total = 1.0;
  var token = 0u;
  if (wanted.greedy != 0u) {
    token = argmax(least, thread);
  } else {
    // −Inf never wins: its key is below that of the lowest number.
    var enough = max(key_of(LOWEST), key_of(highest + wanted.log_min_p));
//#if MASKED
    if (thread == 0u && key_of(highest) < spared) { spared = 0u; }
    let kept = workgroupUniformLoad(&spared);
    if (kept > 0u) {
      wanted.top_k = 0u;
      wanted.top_p = 1.0;
      enough = max(key_of(LOWEST), kept);
    }
//#endif
    let limited = wanted.top_k > 0u && wanted.top_k < params.vocab;
    var source = all_peaks();
    least = 1u;
    // A bound for the top_k-th logit, itself, and the one where top_p is reached: in a loop, so that the search is there
    // only once for the compiler.
    for (var stage = 0u; stage < 3u; stage++) {
      if (select(limited, wanted.top_p < 1.0, stage == 2u)) {
        var measure = Measure();
        if (stage == 2u) { measure = Measure(total_of(source, least, highest, 1.0, me), 1.0, highest); }
        least = max(least, threshold(source, least, wanted.top_k, measure, thread));
      }
      if (stage == 0u) {
        if (wanted.top_p >= 1.0) { least = max(least, enough); }
        source = gather(least, thread);
      }
    }
    least = max(least, enough);
    total = total_of(source, least, highest, wanted.temperature, me);
    token = draw(source, least, Measure(total, wanted.temperature, highest), position, thread);
  }
  if (thread != 0u) { return; }
  token = min(token, params.vocab - 1u);
//#if MASKED
  let again = 1u;
//#else
  let again = 0u;
//#endif
  let result = Result(token, atomicLoad(&bad), least, total, highest, position, again, 0u);
  results[slot * RING + position % RING] = result;
  rows[slot] = vec4<u32>(1u, position, token, position);
  if (position < params.context) { history[place_of(position, table_of(slot))] = token; }
}
