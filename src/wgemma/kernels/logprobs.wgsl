// The logarithm of the probability of the token just drawn, and the `alternatives` most likely tokens with theirs; of the
// model's own distribution, before bias, penalties and temperature.
//
//   logits [V] f32; report [64, 32] (token, log-probability): the drawn token first; row p % 64 for position p
//
// One workgroup. Grid: (1).

//#include row
//#include sampler
@group(0) @binding(1) var<storage, read> settings: Settings;
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(3) var<storage, read> rows: array<Row>;
@group(0) @binding(4) var<storage, read_write> report: array<vec2<u32>>;
//#include reduce

const THREADS = {{THREADS}}u;
var<workgroup> best: atomic<u32>;

@compute @workgroup_size({{THREADS}})
fn main(@builtin(local_invocation_index) thread: u32) {
  var peak = -3.4e38;
  for (var i = thread; i < arrayLength(&logits); i += THREADS) { peak = max(peak, logits[i]); }
  let highest = workgroup_max(peak, thread);
  var sum = 0.0;
  for (var i = thread; i < arrayLength(&logits); i += THREADS) { sum += exp(logits[i] - highest); }
  let logarithm = highest + log(workgroup_sum(sum, thread));
  let drawn = rows[0].token;
  let first = (rows[0].position % 64u) * 32u;
  if (thread == 0u) { report[first] = vec2<u32>(drawn, bitcast<u32>(logits[drawn] - logarithm)); }
  var limit = 3.4e38;            // the last one reported, and its index: the next is below it, or equal with a higher index
  var limit_index = 0xffffffffu;
  for (var n = 1u; n <= min(settings.alternatives, 31u); n++) {
    peak = -3.4e38;
    for (var i = thread; i < arrayLength(&logits); i += THREADS) {
      let value = logits[i];
      if (value < limit || (value == limit && i > limit_index)) { peak = max(peak, value); }
    }
    let next = workgroup_max(peak, thread);
    if (thread == 0u) { atomicStore(&best, 0xffffffffu); }
    workgroupBarrier();
    for (var i = thread; i < arrayLength(&logits); i += THREADS) {
      if (logits[i] == next && (next < limit || i > limit_index)) { atomicMin(&best, i); }
    }
    workgroupBarrier();
    let index = atomicLoad(&best);
    workgroupBarrier();
    if (thread == 0u) { report[first + n] = vec2<u32>(index, bitcast<u32>(next - logarithm)); }
    limit = next;
    limit_index = index;
  }
}
