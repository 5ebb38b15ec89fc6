// What the sampling kernels share: the settings of one generation, the sequence's own past, and where results go.
//
//   settings  Settings           written by the host when a generation begins
//   history   [context] u32      the token at every position
//   picked    [1] u32            the row whose logits these are; after sampling 0, because the next step has one row
//   results   [64] Result        the outcome for position p (the new token's) in p % 64

struct Settings {
  temperature: f32,
  top_p: f32,
  log_min_p: f32,      // ln(min_p), or a very low number
  repeat: f32,
  presence: f32,
  frequency: f32,
  top_k: u32,          // 0: all
  last_n: u32,         // how much of the past the penalties look at
  seed_low: u32,
  seed_high: u32,
  greedy: u32,
  alternatives: u32,   // log-probabilities to report beside the chosen token's
}

struct Result {
  token: u32,
  bad: u32,            // 1: the logits hold NaN or +Inf and mean nothing
  threshold: u32,      // the key of the lowest logit that could have been drawn
  total: f32,          // Σ e^((l − max) / T) over those that could
  highest: f32,
  position: u32,
  spare: vec2<u32>,
}
