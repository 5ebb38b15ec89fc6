/**
 * The settings of the fine-tuning view. Data only; finetune.js makes the fields. What is not set is wgemma's default.
 *
 * @typedef {{label: string, hint: string, own: number, least: number, most: number, whole?: boolean, step: number,
 *   above?: boolean}} NumberField `above`: the value must exceed `least`
 */

/** The main ones, in the order of the view. @type {Record<string, NumberField>} */
export const MAIN = {
  epochs: { label: "Epochs", hint: "passes over the examples", own: 3, least: 1, most: 1000, whole: true, step: 1 },
  lr: {
    label: "Learning rate",
    hint: "too high makes it forget",
    own: 2e-4,
    least: 0,
    most: 1,
    above: true,
    step: 1e-4,
  },
  rank: {
    label: "Rank",
    hint: "higher learns more; larger adapter",
    own: 16,
    least: 1,
    most: 1024,
    whole: true,
    step: 4,
  },
  alpha: {
    label: "Alpha",
    hint: "scales the adapter by alpha / rank",
    own: 32,
    least: 0,
    most: 1e6,
    above: true,
    step: 4,
  },
  seq: {
    label: "Sequence",
    hint: "tokens; longer examples are truncated",
    own: 512,
    least: 2,
    most: 1e6,
    whole: true,
    step: 128,
  },
  batch: { label: "Batch", hint: "sequences per step", own: 2, least: 1, most: 4096, whole: true, step: 1 },
};

/** The others. @type {Record<string, NumberField>} */
export const MORE = {
  steps: { label: "Steps", hint: "instead of epochs", own: 0, least: 1, most: 1e7, whole: true, step: 10 },
  warmup: { label: "Warm-up", hint: "share of the steps, or a number", own: 0.05, least: 0, most: 1e6, step: 0.05 },
  validation: {
    label: "Validation",
    hint: "share of the examples held out",
    own: 0,
    least: 0,
    most: 0.9,
    step: 0.05,
  },
  dropout: { label: "Dropout", hint: "share of inputs dropped", own: 0, least: 0, most: 0.9, step: 0.05 },
  seed: {
    label: "Seed",
    hint: "same seed, same adapter",
    own: 0,
    least: 0,
    most: 2 ** 32 - 1,
    whole: true,
    step: 1,
  },
};

export const NUMBERS = { ...MAIN, ...MORE };

/** @type {[string, string][]} */
export const SCHEDULES = [
  ["cosine", "decays along a curve"],
  ["linear", "decays in a line"],
  ["constant", "does not decay"],
];

/** The matrices an adapter can train, and whether it does by default. @type {[string, string, boolean][]} */
export const TARGETS = [
  ["q", "query", true],
  ["k", "key", true],
  ["v", "value", true],
  ["o", "output", true],
  ["gate", "gate", true],
  ["up", "up", true],
  ["down", "down", true],
  ["ple_gate", "per-layer gate", false],
  ["ple_projection", "per-layer projection", false],
];

/** Fewer steps than this hardly change the model. */
export const FEW_STEPS = 20;

/** What is wrong with a number, or "". @param {string} name @param {number} value */
export function problemOf(name, value) {
  const { label, least, most, whole, above } = NUMBERS[name];
  const good = value >= least && value <= most && (!above || value > least) && (!whole || Number.isInteger(value));
  const from = above ? `above ${least}` : most < 1e6 ? `from ${least}` : `${least} or more`;
  const span = most < 1e6 ? `${from} to ${most}` : from;
  return good ? "" : `${label} must be a ${whole ? "whole " : ""}number, ${span}.`;
}

export const EXAMPLE = `{"messages": [{"role": "user", "content": "Where are you from?"},
              {"role": "assistant", "content": "From the sea, matey!"}]}
{"prompt": "What is for dinner?", "completion": "Fish, arr."}`;
