// What the sampling kernels share: the settings of each slot and where its results go. Row s of a pass is slot s: one
// token of one sequence, whose logits are row s of `logits`. A slot whose row is unused is left alone.
//
//   settings  [slots] Settings     written by the host when a generation begins
//   logits    [slots, V] f32       V rounded up to a multiple of four; bias, counts and adjusted likewise
//   history   [places] u32         the token at every position of every sequence, in pages (tables.wgsl)
//   results   [slots, 8] Result    the outcome for position p (the new token's) in p % 8
//
// Wants `params.vocab`.

const RING = 8u;

struct Settings {
  temperature: f32,
  top_p: f32,
  log_min_p: f32,      // ln(min_p), or a very low number
  repeat: f32,
  presence: f32,
  frequency: f32,
  top_k: u32,          // 0: all
  last_n: u32,         // how much of the past the penalties look at; 0: there are none
  seed_low: u32,
  seed_high: u32,
  greedy: u32,
  adjusts: u32,        // 1: tokens are drawn from the adjusted logits (adjust.wgsl)
  reports: u32,        // log-probabilities to report: 0, or 1 + how many beside the chosen token's
}

struct Result {
  token: u32,
  bad: u32,            // 1: the logits hold NaN or +Inf and mean nothing
  threshold: u32,      // the key of the lowest logit that could have been drawn
  total: f32,          // Σ e^((l − max) / T) over those that could
  highest: f32,
  position: u32,
  again: u32,          // 1: it was drawn again (masks.wgsl)
  spare: u32,
}

// Where a slot's logits begin, in vectors of four.
fn first_quad(slot: u32) -> u32 {
  return slot * ((params.vocab + 3u) / 4u);
}
