/**
 * The face of wgemma.js with a script instead of a model, for what random weights never do: call tools, fail, repeat.
 *
 * `scripted.answers` is a list of answers, each a list of parts; the last is used again and again. A part that is a
 * string is content, {error: {code, message}} is thrown, "…" goes on until it is stopped. `scripted.failure` is what
 * loading fails with, `scripted.pause` how long each step of it takes. `scripted.asked` is what was asked for: {messages,
 * options} of each chat; `scripted.loads` what was loaded.
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
  scripted.loads.push({ source: source.name ?? source, ...options });
  for (const loaded of [0, 5e8, 1e9]) {
    onProgress?.({ stage: "load", loaded, total: 1e9, text: "" });
    await soon(scripted.pause);
    signal?.throwIfAborted();
  }
  if (scripted.failure) throw new WgemmaError(scripted.failure.code, scripted.failure.message);
  const { sees, hears } = scripted;
  return {
    info: {
      name: options.name,
      quantisation: "Q4_K_M",
      parameters: 5e9,
      context: 4096,
      sees,
      hears,
      adapter: "a script",
      bytes: 1e9,
      gpuBytes: 1e9,
    },
    chat,
    close() {},
  };
}

async function* chat(messages, { signal, ...options }) {
  scripted.asked.push({ messages, options });
  const answer = scripted.answers.length > 1 ? scripted.answers.shift() : scripted.answers[0];
  let generated = 0;
  const end = (finishReason) => ({
    kind: "content",
    text: "",
    finishReason,
    usage: { prompt: 120, reused: 100, generated },
    timing: { firstToken: 250, tokensPerSecond: 42 },
  });
  let tool = false;
  for (const part of answer) {
    do {
      await soon();
      if (signal?.aborted) return yield end("cancelled");
      generated++;
      if (part.error) throw new WgemmaError(part.error.code, part.error.message);
      tool ||= part.kind === "tool_call";
      yield typeof part === "string" ? { kind: "content", text: part } : part;
    } while (part === "…");
  }
  yield end(tool ? "tool" : "stop");
}
