/**
 * The settings of a training as the page asks for them: data only, the fields are made by finetune.js. What is not set
 * is wgemma's own default.
 *
 * @typedef {{label: string, hint: string, own: number, least: number, most: number, whole?: boolean, step: number,
 *   above?: boolean}} NumberField `above`: the least itself is too little
 */

/** What most people change, in the order they are shown. @type {Record<string, NumberField>} */
export const MAIN = {
  epochs: { label: "Epochs", hint: "times each example is met", own: 3, least: 1, most: 1000, whole: true, step: 1 },
  lr: {
    label: "Learning rate",
    hint: "too high, and it forgets",
    own: 2e-4,
    least: 0,
    most: 1,
    above: true,
    step: 1e-4,
  },
  rank: {
    label: "Rank",
    hint: "more can be learnt; a larger adapter",
    own: 16,
    least: 1,
    most: 1024,
    whole: true,
    step: 4,
  },
  alpha: {
    label: "Alpha",
    hint: "how much it counts: alpha / rank",
    own: 32,
    least: 0,
    most: 1e6,
    above: true,
    step: 4,
  },
  seq: {
    label: "Sequence",
    hint: "tokens; longer examples are cut",
    own: 512,
    least: 2,
    most: 1e6,
    whole: true,
    step: 128,
  },
  batch: { label: "Batch", hint: "sequences of a step", own: 2, least: 1, most: 4096, whole: true, step: 1 },
};

/** The others. @type {Record<string, NumberField>} */
export const MORE = {
  steps: { label: "Steps", hint: "instead of epochs", own: 0, least: 1, most: 1e7, whole: true, step: 10 },
  warmup: { label: "Warm-up", hint: "a share of the steps, or steps", own: 0.05, least: 0, most: 1e6, step: 0.05 },
  validation: {
    label: "Validation",
    hint: "share of the examples held out",
    own: 0,
    least: 0,
    most: 0.9,
    step: 0.05,
  },
  dropout: { label: "Dropout", hint: "share of inputs left out", own: 0, least: 0, most: 0.9, step: 0.05 },
  seed: {
    label: "Seed",
    hint: "the same seed, the same adapter",
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
  ["cosine", "falls in a curve"],
  ["linear", "falls in a line"],
  ["constant", "stays"],
];

/** The matrices an adapter can change, and whether it does unless told otherwise. @type {[string, string, boolean][]} */
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

/** Fewer steps than this hardly change anything. */
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
