// Finding the few logits that matter without looking at all of them. The k-th largest peak (peaks.wgsl) is a bound: at
// least k logits reach it, so the k largest are among those that do, in the blocks whose peaks do. They are gathered in a
// list, in the order of their tokens; where they are too many for it, all logits are looked at instead. What is done
// with a key is the same either way: a Source says where keys come from.
//
// Wants sampler.wgsl, `settings`, `logits` and `peaks` (both as quads), with ADJUSTED also `adjusted`, with MASKED also
// `masks`, and a workgroup of {{THREADS}}, at least 256, which calls `enter` first.

//#include keys
//#if MASKED
//#include masks
//#endif
//#include reduce
//#include scan

const THREADS = {{THREADS}}u;
const BLOCKS = 256u;             // that can be looked into
const CANDIDATES = 512u;         // that fit the list
const SHARES = 2147483648.0;     // a probability of one, as an integer
const NONE = 0xffffffffu;

const PEAKS = 0u;
const LOGITS = 1u;
const LISTED = 2u;

struct Source {
  kind: u32,
  count: u32,
}

// What a key counts for: one if the total is 0, else e^((l − highest) / temperature) / total, in units of 1 / SHARES.
struct Measure {
  total: f32,
  temperature: f32,
  highest: f32,
}

struct Found {
  bin: u32,
  before: u32,
}

var<workgroup> bins: array<atomic<u32>, 256>;  // zero between searches
var<workgroup> found: Found;
var<workgroup> gathered: u32;
var<workgroup> blocks: array<u32, 256>;
var<workgroup> listed_keys: array<u32, 512>;
var<workgroup> listed_tokens: array<u32, 512>;

var<private> own_slot: u32;  // whose logits these are
var<private> own_quad: u32;  // where they begin
var<private> own_peak: u32;  // and their peaks, likewise in vectors of four
//#if ADJUSTED
var<private> adjusts: bool;
//#endif

fn enter(slot: u32) {
  own_slot = slot;
  own_quad = first_quad(slot);
  own_peak = slot * quads(all_peaks());
//#if ADJUSTED
  adjusts = settings[slot].adjusts != 0u;
//#endif
}

fn all_peaks() -> Source { return Source(PEAKS, (params.vocab + 63u) / 64u); }
fn all_logits() -> Source { return Source(LOGITS, params.vocab); }
fn quads(source: Source) -> u32 { return (source.count + 3u) / 4u; }
fn four(first: u32) -> vec4<u32> { return vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u); }

// Keys, those of places behind the end made 0.
fn within(keys: vec4<u32>, source: Source, quad: u32) -> vec4<u32> {
  return select(vec4<u32>(), keys, four(4u * quad) < vec4<u32>(source.count));
}

fn peaks_at(quad: u32) -> vec4<u32> {
  return within(peaks[own_peak + min(quad, quads(all_peaks()) - 1u)], all_peaks(), quad);
}

// Apart from the keys made of them, so that many loads are on their way at the same time.
fn logits_at(quad: u32) -> vec4<f32> {
  let at = own_quad + min(quad, quads(all_logits()) - 1u);
//#if ADJUSTED
  if (adjusts) { return adjusted[at]; }
//#endif
  return logits[at];
}

fn keys_in(values: vec4<f32>, quad: u32) -> vec4<u32> {
//#if MASKED
  return within(allowed(keys_of(values), quad, own_slot), all_logits(), quad);
//#else
  return within(keys_of(values), all_logits(), quad);
//#endif
}

// The largest of this thread's peaks: (of those that are numbers, of all)
fn own_peaks(thread: u32) -> vec2<u32> {
  var keys = vec2<u32>(key_of(LOWEST));
  for (var quad = thread; quad < quads(all_peaks()); quad += 4u * THREADS) {
//#for i in 4
    let key{{i}} = largest(peaks_at(quad + {{i}}u * THREADS));
//#endfor
//#for i in 4
    keys = max(keys, vec2<u32>(select(key{{i}}, 0u, key{{i}} >= INFINITE), key{{i}}));
//#endfor
  }
  return keys;
}

fn weight(key: u32, measure: Measure) -> u32 {
  if (measure.total == 0.0) { return 1u; }
  return u32(exp((value_of(key) - measure.highest) / measure.temperature) / measure.total * SHARES + 0.5);
}

// Before the first search. (Not every driver hands out memory that is zero.)
fn empty_bins(thread: u32) {
  if (thread < 256u) { atomicStore(&bins[thread], 0u); }
}

// What this thread's bin holds, what those before it do, and what all do; the bins are empty then.
fn summed_bins(thread: u32) -> vec3<u32> {
  workgroupBarrier();
  var here = 0u;
  if (thread < 256u) { here = atomicExchange(&bins[thread], 0u); }
  return vec3<u32>(here, workgroup_before(here, thread));
}

// The bin in which, counting from the first, `goal` is passed, and what lies before it.
fn find(goal: u32, sums: vec3<u32>, thread: u32) -> Found {
  if (thread < 256u && sums.y <= goal && (goal < sums.y + sums.x || thread == 255u)) { found = Found(thread, sums.y); }
  return workgroupUniformLoad(&found);
}

fn tally(key: u32, least: u32, prefix: u32, shift: u32, measure: Measure) {
  if (key < least || ((key >> shift) >> 8u) != prefix) { return; }
  let part = weight(key, measure);
  if (part > 0u) { atomicAdd(&bins[255u - ((key >> shift) & 255u)], part); }
}

fn tally_four(keys: vec4<u32>, least: u32, prefix: u32, shift: u32, measure: Measure) {
  for (var i = 0u; i < 4u; i++) { tally(keys[i], least, prefix, shift, measure); }
}

// Of the keys ≥ least (> 0) the count-th largest; or, by any other measure than counting, the largest key such that what
// is at or above it makes up top_p of all. Found digit by digit, from the highest; 0 where there are not so many.
fn threshold(source: Source, least: u32, count: u32, measure: Measure, thread: u32) -> u32 {
  var prefix = 0u;
  var goal = count - 1u;
  for (var level = 0u; level < 4u; level++) {
    let shift = 24u - 8u * level;
    if (source.kind == LISTED) {
      for (var i = thread; i < source.count; i += THREADS) { tally(listed_keys[i], least, prefix, shift, measure); }
    } else if (source.kind == PEAKS) {
      for (var quad = thread; quad < quads(source); quad += THREADS) {
        tally_four(peaks_at(quad), least, prefix, shift, measure);
      }
    } else {
      for (var quad = thread; quad < quads(source); quad += 4u * THREADS) {
//#for i in 4
        let l{{i}} = logits_at(quad + {{i}}u * THREADS);
//#endfor
//#for i in 4
        tally_four(keys_in(l{{i}}, quad + {{i}}u * THREADS), least, prefix, shift, measure);
//#endfor
      }
    }
    let sums = summed_bins(thread);
    if (level == 0u && measure.total > 0.0) { goal = max(1u, u32(ceil(f32(sums.z) * settings[own_slot].top_p))) - 1u; }
    let digit = find(goal, sums, thread);
    goal -= digit.before;
    prefix = (prefix << 8u) | (255u - digit.bin);
  }
  return prefix;
}

fn hits_in(hits: vec4<bool>) -> u32 {
  return dot(select(vec4<u32>(), vec4<u32>(1u), hits), vec4<u32>(1u));
}

// Puts the logits with keys ≥ bound (> 0) on the list, if there is room. Where to look for them now.
fn gather(bound: u32, thread: u32) -> Source {
  let least = vec4<u32>(bound);
  var count = 0u;
  for (var first = 0u; first < quads(all_peaks()); first += THREADS) {
    let hits = peaks_at(first + thread) >= least;
    let sums = workgroup_before(hits_in(hits), thread);
    var at = count + sums.x;
//#for i in 4
    if (hits[{{i}}]) {
      if (at < BLOCKS) { blocks[at] = 4u * (first + thread) + {{i}}u; }
      at += 1u;
    }
//#endfor
    count += sums.y;
  }
  if (thread == 0u) { gathered = count; }
  let looked_into = workgroupUniformLoad(&gathered);
  if (looked_into > BLOCKS) { return all_logits(); }
  count = 0u;
  for (var first = 0u; first < 16u * looked_into; first += THREADS) {
    let which = first + thread;
    let quad = 16u * blocks[min(which / 16u, BLOCKS - 1u)] + which % 16u;
    let keys = keys_in(logits_at(quad), quad);
    let hits = (keys >= least) & vec4<bool>(which < 16u * looked_into);
    let sums = workgroup_before(hits_in(hits), thread);
    var at = count + sums.x;
//#for i in 4
    if (hits[{{i}}]) {
      if (at < CANDIDATES) {
        listed_keys[at] = keys[{{i}}];
        listed_tokens[at] = 4u * quad + {{i}}u;
      }
      at += 1u;
    }
//#endfor
    count += sums.y;
  }
  if (thread == 0u) { gathered = count; }
  let listed = workgroupUniformLoad(&gathered);
  if (listed > CANDIDATES) { return all_logits(); }
  return Source(LISTED, listed);
}
