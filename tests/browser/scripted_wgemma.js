/**
 * The face of wgemma.js with a script instead of a model, for what random weights never do: call tools, fail, repeat.
 *
 * `scripted.answers` is a list of answers, each a list of parts; the last is used again and again. A part that is a
 * string is content, {error: {code, message}} is thrown, "…" goes on until it is stopped. `scripted.failure` is what
 * loading fails with, `scripted.pause` how long each step of it takes. `scripted.asked` is what was asked for: {messages,
 * options} of each chat; `scripted.loads` what was loaded. A training makes `scripted.steps` steps, takes
 * `scripted.pause` for each, and fails with `scripted.trouble` after the last; `scripted.examined` is what is in any
 * file. `scripted.tuned` is what was asked for. A word is a token; `scripted.rate` is how many of them are decoded in a
 * second, by their own account, and prompts of more than a hundred words are read forty times as fast.
 * `scripted.dropped` is how many messages a full context left out.
 */

export class WgemmaError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

globalThis.scripted ??= {};
const scripted = (globalThis.scripted = {
  answers: [["You said it."]],
  asked: [],
  loads: [],
  tuned: [],
  steps: 4,
  rate: 42,
  dropped: 0,
  info: {},
  examined: { examples: 5, held: 0, tokens: 113, targets: 24, truncated: 0, bad: [] },
  sees: true,
  hears: true,
  ...globalThis.scripted,
});
const soon = (pause = 0) => new Promise((resolve) => setTimeout(resolve, pause));

export const supported = async () => ({ ok: true, adapter: "a script" });
export const saved = async () => [];
export const forget = async () => {};
export const warm = () => {};

export async function load(source, { onProgress, signal, ...options } = {}) {
  scripted.loads.push({ source: Array.isArray(source) ? source.map(({ name }) => name).join() : source, ...options });
  for (const loaded of [0, 5e8, 1e9]) {
    onProgress?.({ stage: "load", loaded, total: 1e9, text: "" });
    await soon(scripted.pause);
    signal?.throwIfAborted();
  }
  if (scripted.failure) throw new WgemmaError(scripted.failure.code, scripted.failure.message);
  const { sees, hears } = scripted;
  return {
    info: {
      version: "1.2.3",
      name: options.name,
      quantisation: "Q4_K_M",
      precision: "fast",
      parameters: 5e9,
      context: 4096,
      sees,
      hears,
      adapter: "a script",
      bytes: 1e9,
      gpuBytes: 1e9,
      features: ["shader-f16", "subgroups"],
      limits: { binding: 2 ** 31, buffer: 2 ** 32 },
      table: "host",
      loading: {
        total: 12_345,
        stages: [
          { name: "Python", ms: 2100 },
          { name: "header", ms: 43 },
          { name: "weights", ms: 9100, bytes: 3.2e9, reading: 1400 },
        ],
      },
      ...scripted.info,
    },
    chat,
    adapters: {},
    tokenize: async (text) => words(text),
    stats: async () => ({ heap: 79e6, gpu: 3.4e9 }),
    async close() {},
    async loadAdapter(file, { name = file.name?.replace(".gguf", "") ?? "adapter" } = {}) {
      if (scripted.refused) throw new WgemmaError(scripted.refused.code, scripted.refused.message);
      if (file.name?.startsWith("bad")) throw new WgemmaError("adapter", `${file.name} does not fit this model.`);
      const files = typeof file === "string" ? file : (file.name ?? file.map((one) => one.name));
      scripted.adapters = { ...scripted.adapters, [name]: files };
      this.adapters[name] = 1;
      return name;
    },
    async unloadAdapter(name) {
      delete scripted.adapters[name];
    },
    async examine(file, settings) {
      if (scripted.unreadable) throw new WgemmaError("data", scripted.unreadable);
      return { ...scripted.examined, steps: settings.steps ?? scripted.steps };
    },
    finetune,
  };
}

const words = (text) => text.match(/\S+/g) ?? [];

async function* finetune(data, { signal, ...settings }) {
  scripted.tuned.push({ data: data.name, settings });
  const losses = [];
  const validation = [];
  for (let step = 1; step <= scripted.steps && !signal.aborted; step++) {
    await soon(scripted.pause);
    losses.push(3.2 * 0.985 ** step + 0.25 * Math.sin(step * 12.9898) ** 2);
    const told = { step, steps: scripted.steps, epoch: Math.ceil((3 * step) / scripted.steps), loss: losses.at(-1) };
    const held = scripted.examined.held && step % 20 === 0 ? 3.3 * 0.986 ** step + 0.2 : null;
    if (held) validation.push([step, held]);
    const left = (scripted.steps - step) * 1.4;
    yield { ...told, rate: 2e-4, norm: 1, tokensPerSecond: 742, secondsLeft: left, memory: 3.4e9, validation: held };
  }
  const file = (name) => new File([`${name} of ${losses.length} steps`], name);
  const adapter = {
    gguf: file("adapter.gguf"),
    config: file("adapter_config.json"),
    safetensors: file("adapter_model.safetensors"),
    card: file("README.md"),
    curve: file("loss.svg"),
  };
  yield { losses, validation, steps: scripted.steps, stopped: losses.length < scripted.steps, adapter };
  if (scripted.trouble) throw new WgemmaError("training", scripted.trouble);
}

async function* chat(messages, { signal, ...options }) {
  scripted.asked.push({ messages, options });
  const answer = scripted.answers.length > 1 ? scripted.answers.shift() : scripted.answers[0];
  const { length } = words(String(messages.at(-1).content));
  const { rate, dropped } = scripted;
  let generated = 0;
  const end = (finishReason) => ({
    kind: "content",
    text: "",
    finishReason,
    usage: { ...(length > 100 ? { prompt: length, reused: 2 } : { prompt: 120, reused: 100 }), generated, dropped },
    timing: { firstToken: length > 100 ? (1000 * (length - 2)) / (40 * rate) : 250, tokensPerSecond: rate },
  });
  let tool = false;
  for (const part of answer) {
    do {
      await soon();
      if (signal?.aborted) return yield end("cancelled");
      if (generated === options.maxTokens) return yield end("length");
      generated++;
      if (part.error) throw new WgemmaError(part.error.code, part.error.message);
      tool ||= part.kind === "tool_call";
      yield typeof part === "string" ? { kind: "content", text: part } : part;
    } while (part === "…");
  }
  yield end(tool ? "tool" : "stop");
}
