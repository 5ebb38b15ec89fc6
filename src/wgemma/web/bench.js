/**
 * Measures a loaded model, and writes a report to share.
 *
 *   import { bench, report } from "./bench.js";
 *
 *   const result = await bench(model, { onProgress: ({ text }) => (output.textContent = text) });
 *   output.textContent = report(result);
 *
 * Independent of page and engine: `model` is anything with the `info`, `chat`, `tokenize` and `stats` of wgemma.js.
 * Takes seconds on a GPU and about a minute at most, because every step has a time limit; `notes` say what was cut
 * short. It evicts the current chat from the KV cache. Types are in bench.d.ts.
 */

import { bytes, duration, plural } from "./ui/format.js";

const DECODED = 200; // tokens
const PROMPTS = [512, 2048]; // tokens
const MARKUP = 16; // tokens the chat template and a random number add to a prompt, roughly
const ROOM = 32; // tokens of the context a prompt leaves free
const WARM_UP = 1500; // milliseconds of work until a GPU's clock is up
const LIMIT = 20_000; // milliseconds for steps that may compile kernels
const DECODE_LIMIT = 10_000; // milliseconds: cuts decoding short below 20 tokens/s
const EVERY = 200; // milliseconds between progress reports
const SLOW = 5000; // milliseconds: after a prompt this slow, longer ones are skipped

const STORY =
  "Tell me a very long story, of at least a thousand words, about a lighthouse keeper, her daughter, and a ship that " +
  "comes back every winter. Begin at once, and do not stop early.";
const PROSE =
  "The mill stood where the river bends, and nobody remembered who had built it. In spring the water carried " +
  "branches, bottles and once a blue door down from the hills; in autumn it was so low that children crossed it " +
  "dry. Old maps call the place Seven Stones, though there are nine, two of them hidden below the bridge. Whoever " +
  "asked the miller for the reason was given bread, a chair by the window and another question. She kept an exact " +
  "record of every flood, every visitor and every sack of grain, in small green letters that her grandson later " +
  "learned to read by candle light. ";

/**
 * @param {import("./bench").Benchable} model
 * @param {import("./bench").BenchOptions} [options]
 * @returns {Promise<import("./bench").Result>}
 */
export async function bench(model, { signal, onProgress = () => {} } = {}) {
  const { info } = model;
  const lengths = [...new Set(PROMPTS.map((tokens) => Math.min(tokens, info.context - ROOM)))];
  const notes = /** @type {string[]} */ ([]);

  onProgress({ text: "Warming up", share: null });
  await replied(model, STORY, { maxTokens: 16, limit: LIMIT, signal }); // compiles the kernels
  await replied(model, STORY, { maxTokens: DECODED, limit: WARM_UP, signal });

  let last = 0;
  const told = (/** @type {number} */ done) => {
    if (done && performance.now() - last < EVERY) return; // drawing would slow down what is measured
    last = performance.now();
    onProgress({ text: `Decoding ${DECODED} tokens`, share: (0.5 * done) / DECODED });
  };
  const decode = await decoded(model, { signal, told, notes });

  /** @type {import("./bench").Result["prompts"]} */
  const prompts = [];
  for (const [i, tokens] of lengths.entries()) {
    if (i && !(prompts[i - 1]?.ms < SLOW)) {
      notes.push(`A prompt of ${tokens} tokens was skipped: a shorter one took more than ${SLOW / 1000} s.`);
      continue;
    }
    onProgress({ text: `Reading a prompt of ${tokens} tokens`, share: 0.5 + (0.5 * i) / lengths.length });
    const prompt = await read(model, tokens, signal);
    if (prompt) prompts.push(prompt);
    else notes.push(`A prompt of ${tokens} tokens took more than ${LIMIT / 1000} s and was skipped.`);
  }
  const memory = await model.stats();
  onProgress({ text: "Done", share: 1 });
  return { ...about(info), decode, prompts, memory, notes };
}

/** What needs no measuring. @param {import("./wgemma").ModelInfo} info */
function about({ name, quantisation, parameters, precision, context, bytes: size, table, ...info }) {
  return {
    version: info.version,
    model: { name, quantisation, parameters, precision, context, bytes: size, table },
    adapter: { name: info.adapter, features: info.features, limits: info.limits },
    browser: browserName(navigator.userAgent),
    loading: info.loading,
  };
}

// -- measuring

/**
 * The last part of a reply, with its counts and times; null if the time limit came before the first token.
 * @param {import("./bench").Benchable} model @param {string} content
 * @param {{maxTokens: number, limit: number, signal?: AbortSignal, heard?: () => void}} how
 */
async function replied(model, content, { maxTokens, limit, signal, heard = () => {} }) {
  const late = AbortSignal.timeout(limit);
  const either = signal ? AbortSignal.any([signal, late]) : late;
  const sampling = { temperature: 1, seed: 1, adapter: null };
  let last = null;
  for await (const part of model.chat([{ role: "user", content }], { ...sampling, maxTokens, signal: either })) {
    last = part;
    heard();
  }
  signal?.throwIfAborted();
  return last?.finishReason === "cancelled" && !last.usage?.generated ? null : last;
}

/**
 * @param {import("./bench").Benchable} model
 * @param {{signal?: AbortSignal, told: (done: number) => void, notes: string[]}} how
 */
async function decoded(model, { signal, told, notes }) {
  let done = 0;
  told(done);
  const heard = () => told(Math.min(++done, DECODED));
  const last = await replied(model, STORY, { maxTokens: DECODED, limit: DECODE_LIMIT, signal, heard });
  const tokens = last?.usage?.generated ?? 0;
  if (!last || last.finishReason === "cancelled") notes.push(`Decoding was stopped after ${DECODE_LIMIT / 1000} s.`);
  else if (last.finishReason === "stop") notes.push(`The model ended its story after ${plural(tokens, "token")}.`);
  return { tokens, tokensPerSecond: last?.timing?.tokensPerSecond ?? 0 };
}

/**
 * Time to first token of a prompt; of the second run, because the first compiles kernels. Null if it takes too long.
 * @param {import("./bench").Benchable} model @param {number} tokens @param {AbortSignal} [signal]
 */
async function read(model, tokens, signal) {
  const text = await textOf(model, tokens - MARKUP);
  for (let run = 1; ; run++) {
    const fresh = `${Math.random().toString().slice(2, 8)} ${text}`; // so that nothing comes from the KV cache
    const last = await replied(model, fresh, { maxTokens: 1, limit: LIMIT, signal });
    if (!last?.usage || !last.timing) return null;
    if (run < 2) continue;
    const { prompt, reused } = last.usage;
    const ms = last.timing.firstToken;
    return { tokens: prompt - reused, reused, ms, tokensPerSecond: (1000 * (prompt - reused)) / ms };
  }
}

/** Prose of about `tokens` tokens, never more. @param {import("./bench").Benchable} model @param {number} tokens */
async function textOf(model, tokens) {
  const each = (await model.tokenize(PROSE)).length / PROSE.length;
  const prose = PROSE.repeat(Math.ceil(tokens / (each * PROSE.length)) + 1);
  let length = Math.round(tokens / each);
  for (;;) {
    const text = prose.slice(0, length);
    const found = (await model.tokenize(text)).length;
    if (found <= tokens) return text;
    length = Math.floor((length * tokens) / found) - 1;
  }
}

// -- the report

/**
 * The result as a Markdown table, aligned to read well as plain text.
 * @param {import("./bench").Result} result
 */
export function report(result) {
  const { model, loading, decode, prompts, notes } = result;
  const stages = loading.stages.map((stage) => [`- ${stage.name}`, [time(stage.ms), ...moved(stage)].join(", ")]);
  const rows = [
    [model.name, modelFacts(result)],
    ...facts(result),
    ["Loading", time(loading.total)],
    ...stages,
    ...prompts.map(({ tokens, tokensPerSecond, ms }) => [
      `Prompt, ${tokens} tokens`,
      `${rate(tokensPerSecond)} tokens/s (${time(ms)})`,
    ]),
    [`Decode, ${decode.tokens} tokens`, `${rate(decode.tokensPerSecond)} tokens/s`],
  ].map((row) => row.map(cell));
  const widths = [0, 1].map((column) => Math.max(...rows.map((row) => row[column].length)));
  const line = (/** @type {string[]} */ [a, b]) => `| ${a.padEnd(widths[0])} | ${b.padEnd(widths[1])} |`;
  const rule = `|:${"-".repeat(widths[0] + 1)}|:${"-".repeat(widths[1] + 1)}|`;
  const [head, ...rest] = rows.map(line);
  return [head, rule, ...rest, ...(notes.length ? ["", ...notes] : [])].join("\n");
}

/** Escapes a cell: names come from files. @param {string} text */
const cell = (text) => text.replace(/\s+/g, " ").trim().replace(/[\\|`]/g, "\\$&");

/** "Q4_K_M, 7.2 GB" @param {import("./bench").Result} result */
export function modelFacts({ model, settings = {} }) {
  const asked = Object.entries(settings).map(([name, value]) => `${name}=${value}`);
  return [model.quantisation, bytes(model.bytes), ...asked].filter(Boolean).join(", ");
}

const TABLE = { gpu: "on the GPU", host: "in the file, read row by row" };

/** What the model ran on: names and values. @param {import("./bench").Result} result @returns {[string, string][]} */
export function facts({ version, model, adapter, browser, memory }) {
  const { binding, buffer } = adapter.limits;
  const limits = [buffer && `buffers of ${bytes(buffer)}`, binding && `bindings of ${bytes(binding)}`].filter(Boolean);
  /** @type {[string, string][]} */
  const all = [
    ["wgemma", `${version}, precision ${model.precision}`],
    ["GPU", adapter.name],
    ["Features", adapter.features.join(", ")],
    ["Limits", limits.join(", ")],
    ["Browser", browser],
    ["Memory", `${bytes(memory.gpu)} on the GPU, ${bytes(memory.heap)} in Python`],
    ["Per-layer table", model.table ? TABLE[model.table] : ""],
  ];
  return all.filter(([, value]) => value);
}

/** 98.27 → "98.3", 0 → "–" @param {number} tokensPerSecond */
export function rate(tokensPerSecond) {
  if (!tokensPerSecond) return "–";
  return tokensPerSecond < 100 ? tokensPerSecond.toFixed(1) : Math.round(tokensPerSecond).toString();
}

/** 128.4 → "128 ms", 12345 → "12.3 s" @param {number} ms */
export function time(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : duration(ms / 1000);
}

/**
 * Throughput of a stage: ["3.2 GB at 386 MB/s", "1.4 s of it waiting for the file"]
 * @param {import("./bench").Stage} stage
 */
export function moved({ ms, bytes: size, reading }) {
  if (!size || !ms) return [];
  const rate = `${bytes(size)} at ${bytes((1000 * size) / ms)}/s`;
  return reading ? [rate, `${time(reading)} of it waiting for the file`] : [rate];
}

/** In order: browsers also name the ones they derive from. @type {[string, RegExp][]} */
const BROWSERS = [
  ["Edge", /Edg\w*\/(\d+)/],
  ["Opera", /OPR\/(\d+)/],
  ["Samsung Internet", /SamsungBrowser\/(\d+)/],
  ["Firefox", /(?:Firefox|FxiOS)\/(\d+)/],
  ["Chrome", /(?:Chrome|CriOS)\/(\d+)/],
  ["Safari", /Version\/(\d+(?:\.\d+)?).*Safari/],
];
/** @type {[string, RegExp][]} */
const SYSTEMS = [
  ["Android", /Android/],
  ["iOS", /iPhone|iPad/],
  ["macOS", /Mac OS X/],
  ["Windows", /Windows/],
  ["ChromeOS", /CrOS/],
  ["Linux", /Linux/],
];

/** "Chrome 140 on Linux" @param {string} userAgent */
export function browserName(userAgent) {
  const system = SYSTEMS.find(([, test]) => test.test(userAgent))?.[0];
  for (const [name, test] of BROWSERS) {
    const version = test.exec(userAgent)?.[1];
    if (version) return system ? `${name} ${version} on ${system}` : `${name} ${version}`;
  }
  return userAgent;
}
