// Draws the next token from logits l, in this order: the top_k largest; of these the shortest prefix, in falling order,
// whose probabilities reach top_p; of these those with l ≥ max + ln(min_p); then with probability ∝ e^(l / T).
// Exact for any V: thresholds are found digit by digit over order-preserving keys, counts and probabilities summed as
// integers, so the outcome does not depend on the order of addition. Equal logits stay or go together. The random number
// is a hash of the seed and the position, so a step can be repeated.
//
//   logits [V] f32; the rest in sampler.wgsl. Writes the result, the sequence's past, and row 0 for the next step.
//
// One workgroup. Grid: (1).

//#include row
//#include sampler
@group(0) @binding(1) var<storage, read> settings: Settings;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read_write> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> picked: array<u32>;
@group(0) @binding(5) var<storage, read_write> history: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<Result>;
//#include reduce

const THREADS = {{THREADS}}u;
const SHARES = 2147483648.0;  // a probability of one, as an integer

var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> found_digit: u32;
var<workgroup> found_above: u32;
var<workgroup> winner: atomic<u32>;

// Larger floats have larger keys.
fn key_of(value: f32) -> u32 {
  let bits = bitcast<u32>(value);
  return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The digit of the key at which, counting down from the largest, `goal` is reached; what lies above it is remembered.
fn find_digit(goal: u32, thread: u32) -> u32 {
  workgroupBarrier();
  if (thread == 0u) {
    var above = 0u;
    var digit = 255u;
    loop {
      let here = atomicLoad(&bins[digit]);
      if (above + here >= goal || digit == 0u) { break; }
      above += here;
      digit -= 1u;
    }
    found_digit = digit;
    found_above = above;
  }
  workgroupBarrier();
  return workgroupUniformLoad(&found_digit);
}

fn clear_bins(thread: u32) {
  workgroupBarrier();
  for (var i = thread; i < 256u; i += THREADS) { atomicStore(&bins[i], 0u); }
  workgroupBarrier();
}

// The key of the top_k-th largest logit.
fn threshold_of_count(count: u32, thread: u32) -> u32 {
  var prefix = 0u;
  var goal = count;
  for (var level = 0u; level < 4u; level++) {
    let shift = 24u - 8u * level;
    clear_bins(thread);
    for (var i = thread; i < arrayLength(&logits); i += THREADS) {
      let key = key_of(logits[i]);
      if (level == 0u || (key >> (shift + 8u)) == prefix) { atomicAdd(&bins[(key >> shift) & 255u], 1u); }
    }
    let digit = find_digit(goal, thread);
    goal -= workgroupUniformLoad(&found_above);
    prefix = (prefix << 8u) | digit;
  }
  return prefix;
}

fn share(value: f32, highest: f32, total: f32) -> u32 {
  return u32(exp(value - highest) / total * SHARES + 0.5);
}

// The largest key such that what is at or above it, among keys ≥ least, has the probability top_p.
fn threshold_of_mass(least: u32, highest: f32, thread: u32) -> u32 {
  var sum = 0.0;
  for (var i = thread; i < arrayLength(&logits); i += THREADS) {
    if (key_of(logits[i]) >= least) { sum += exp(logits[i] - highest); }
  }
  let total = workgroup_sum(sum, thread);
  var prefix = 0u;
  var goal = 0u;
  for (var level = 0u; level < 4u; level++) {
    let shift = 24u - 8u * level;
    clear_bins(thread);
    for (var i = thread; i < arrayLength(&logits); i += THREADS) {
      let key = key_of(logits[i]);
      if (key >= least && (level == 0u || (key >> (shift + 8u)) == prefix)) {
        atomicAdd(&bins[(key >> shift) & 255u], share(logits[i], highest, total));
      }
    }
    if (level == 0u) {
      workgroupBarrier();
      var all = 0u;
      for (var i = 0u; i < 256u; i++) { all += atomicLoad(&bins[i]); }
      goal = max(1u, u32(ceil(f32(all) * settings.top_p)));
    }
    let digit = find_digit(goal, thread);
    goal -= workgroupUniformLoad(&found_above);
    prefix = (prefix << 8u) | digit;
  }
  return max(prefix, least);
}

fn hash(value: u32) -> u32 {
  var x = value;
  x = (x ^ (x >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}

// Uniform in [0, 1), the same for the same seed and position.
fn random(position: u32) -> f32 {
  let mixed = hash(position ^ hash(settings.seed_low ^ hash(settings.seed_high + 0x9e3779b9u)));
  return f32(mixed >> 8u) / 16777216.0;
}

// The largest logit's index (the lowest of equals).
fn argmax(highest: f32, thread: u32) -> u32 {
  var best = 0xffffffffu;
  for (var i = thread; i < arrayLength(&logits); i += THREADS) {
    if (logits[i] == highest) { best = min(best, i); }
  }
  if (thread == 0u) { atomicStore(&winner, 0xffffffffu); }
  workgroupBarrier();
  atomicMin(&winner, best);
  workgroupBarrier();
  return atomicLoad(&winner);
}

// The bin at which, counting up from the first, `goal` is passed; what lies below it is remembered in found_above.
fn find_bin(goal: u32, thread: u32) -> u32 {
  workgroupBarrier();
  if (thread == 0u) {
    var below = 0u;
    var bin = 0u;
    loop {
      let here = atomicLoad(&bins[bin]);
      if (below + here > goal || bin == 255u) { break; }
      below += here;
      bin += 1u;
    }
    found_digit = bin;
    found_above = below;
  }
  workgroupBarrier();
  return workgroupUniformLoad(&found_digit);
}

fn drawn_share(i: u32, least: u32, highest: f32, total: f32) -> u32 {
  let value = logits[i];
  if (key_of(value) < least) { return 0u; }
  return u32(exp((value - highest) / settings.temperature) / total * SHARES + 0.5);
}

// Draws among keys ≥ least. Probabilities are integers and stand in the order of their tokens, so that the number of
// threads makes no difference: first the 256th of the vocabulary is found that holds the random number, then the 256th
// of that, until one token is left.
fn draw(least: u32, highest: f32, position: u32, thread: u32) -> vec2<u32> {
  var sum = 0.0;
  for (var i = thread; i < arrayLength(&logits); i += THREADS) {
    if (key_of(logits[i]) >= least) { sum += exp((logits[i] - highest) / settings.temperature); }
  }
  let total = workgroup_sum(sum, thread);
  var begin = 0u;
  var end = arrayLength(&logits);
  var goal = 0u;
  for (var level = 0u; level < 4u; level++) {
    let width = (end - begin + 255u) / 256u;
    clear_bins(thread);
    for (var i = begin + thread; i < end; i += THREADS) {
      atomicAdd(&bins[(i - begin) / width], drawn_share(i, least, highest, total));
    }
    workgroupBarrier();
    if (level == 0u) {
      var all = 0u;
      for (var i = 0u; i < 256u; i++) { all += atomicLoad(&bins[i]); }
      goal = min(u32(random(position) * f32(all)), max(all, 1u) - 1u);
    }
    let bin = find_bin(goal, thread);
    goal -= workgroupUniformLoad(&found_above);
    begin += bin * width;
    end = min(end, begin + width);
    workgroupBarrier();
  }
  return vec2<u32>(begin, bitcast<u32>(total));
}

@compute @workgroup_size({{THREADS}})
fn main(@builtin(local_invocation_index) thread: u32) {
  let row = rows[picked[0]];
  let position = row.position + 1u;
  var peak = -3.4e38;
  var bad = 0.0;
  for (var i = thread; i < arrayLength(&logits); i += THREADS) {
    let value = logits[i];
    let bits = bitcast<u32>(value);
    // NaN or +Inf; a suppressed token's −Inf is fine.
    if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) { bad = 1.0; } else { peak = max(peak, value); }
  }
  let highest = workgroup_max(peak, thread);
  let broken = workgroup_max(bad, thread) > 0.0;

  var least = key_of(highest);
  if (settings.greedy == 0u) {
    least = 0u;
    if (settings.top_k > 0u && settings.top_k < arrayLength(&logits)) {
      least = threshold_of_count(settings.top_k, thread);
    }
    if (settings.top_p < 1.0) { least = threshold_of_mass(least, highest, thread); }
    least = max(least, key_of(highest + settings.log_min_p));
    // −Inf never wins: its key is that of the lowest number.
    least = max(least, key_of(-3.4e38));
  }
  var chosen = vec2<u32>(0u, bitcast<u32>(1.0));
  if (settings.greedy != 0u) { chosen.x = argmax(highest, thread); } else { chosen = draw(least, highest, position, thread); }
  if (thread != 0u) { return; }
  let token = min(chosen.x, arrayLength(&logits) - 1u);
  let total = bitcast<f32>(chosen.y);
  results[position % 64u] = Result(token, u32(broken), least, total, highest, position, vec2<u32>());
  rows[0] = Row(1u, position, token, position);
  picked[0] = 0u;
  if (position < arrayLength(&history)) { history[position] = token; }
}
