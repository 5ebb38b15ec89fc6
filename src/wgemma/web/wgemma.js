/**
 * Gemma 4 in a web page, on the visitor's own GPU.
 *
 *   import { load } from "./wgemma.js";
 *
 *   const model = await load("models/gemma4-e2b.gguf");
 *   for await (const part of model.chat([{ role: "user", content: "Why is the sky blue?" }])) {
 *     document.body.append(part.text);
 *   }
 *
 * Types are in wgemma.d.ts. All errors are `WgemmaError`s: `message` is a sentence to show as it is, `code` is one of
 * those in trouble.js.
 */

/**
 * @typedef {import("./wgemma").Source} Source
 * @typedef {import("./wgemma").Progress} Progress
 * @typedef {import("./wgemma").ModelInfo} ModelInfo
 * @typedef {import("./wgemma").AdapterChoice} AdapterChoice
 * @typedef {import("./wgemma").TrainingSettings} TrainingSettings
 * @typedef {import("./wgemma").Trained} Trained
 */

import { decoded, picture, sound } from "./media.js";
import { forget, saved } from "./opfs.js";
import { human, WgemmaError } from "./trouble.js";

export { forget, saved, WgemmaError };

// -- support

/**
 * Whether this browser can run a model, and on which adapter; if not, why and what to do.
 * @returns {Promise<{ok: true, adapter: string} | {ok: false, reason: string}>}
 */
export async function supported() {
  /** @param {string} text @returns {{ok: false, reason: string}} */
  const reason = (text) => ({ ok: false, reason: text });
  if (!globalThis.isSecureContext) {
    return reason("WebGPU needs a secure page: open this one with https, or at http://localhost.");
  }
  if (!navigator.gpu) {
    return reason(
      "This browser has no WebGPU. Use an up-to-date Chrome or Edge (113 or later), Safari (26 or later) or Firefox (141 or later).",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) {
    return reason(
      "WebGPU found no GPU. Turn on hardware acceleration in the browser's settings and update the GPU driver; " +
        "on Linux, Chrome may need chrome://flags/#enable-unsafe-webgpu.",
    );
  }
  const { description, vendor, architecture } = adapter.info ?? {};
  return { ok: true, adapter: description || [vendor, architecture].filter(Boolean).join(" ") || "a WebGPU adapter" };
}

// -- the engine's Worker

/**
 * The Worker's result for each verb, and the parts it sends before.
 * @typedef {{
 *   load: ModelInfo,
 *   chat: unknown,
 *   logits: Float32Array,
 *   tokenize: number[],
 *   encode: Float32Array,
 *   adapt: {name: string, adapters: Record<string, number>},
 *   unadapt: {adapters: Record<string, number>},
 *   examine: import("./wgemma").Examined,
 *   finetune: unknown,
 *   reset: void,
 *   stats: {heap: number, gpu: number},
 *   unload: void,
 * }} Answers
 * @typedef {{
 *   load: Omit<Progress, "text">,
 *   chat: import("./wgemma").Part,
 *   finetune: import("./wgemma").TrainingStep | Files,
 * }} Parts
 * @typedef {Omit<Trained, "adapter"> & {files: Record<string, File>}} Files
 * @typedef {{id: number} & ({kind: "progress" | "part" | "result", value: any}
 *   | {kind: "error", code: import("./wgemma").ErrorCode, message: string})} Word
 */

class Engine {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "wgemma" });
  /** @type {Map<number, {resolve: (value: any) => void, reject: (error: Error) => void, hear: (part: any) => void}>} */
  #calls = new Map();
  #last = 0;
  /** @type {WgemmaError | null} */
  failed = null;
  /** @type {Promise<void>} */
  unloaded = Promise.resolve(); // resolves when its last model is unloaded

  constructor() {
    this.#worker.onmessage = ({ data }) => this.#hear(data);
    this.#worker.onerror = (event) => {
      event.preventDefault?.();
      this.end(new WgemmaError("worker", `The engine failed: ${event.message || "its Worker crashed"}. Load the model again.`));
    };
  }

  /** @param {Word} word */
  #hear(word) {
    const call = this.#calls.get(word.id);
    if (!call) return;
    if (word.kind === "progress" || word.kind === "part") return call.hear(word.value);
    this.#calls.delete(word.id);
    if (word.kind === "error") call.reject(new WgemmaError(word.code, word.message));
    else call.resolve(word.value);
  }

  /**
   * Sends a message and returns its result; `hear` gets progress and parts.
   * @template {keyof Answers} V @param {V} verb @param {object} [order]
   * @param {{hear?: (part: V extends keyof Parts ? Parts[V] : never) => void, transfer?: Transferable[]}} [options]
   */
  call(verb, order = {}, { hear = () => {}, transfer = [] } = {}) {
    const id = ++this.#last;
    /** @type {Promise<Answers[V]>} */
    const promise = new Promise((resolve, reject) => {
      if (this.failed) return reject(this.failed);
      this.#calls.set(id, { resolve, reject, hear });
      this.#worker.postMessage({ ...order, id, verb }, transfer);
    });
    return Object.assign(promise, { id });
  }

  /** Sends a message without waiting for an answer. @param {"stop"} verb @param {{of: number}} order */
  tell(verb, order) {
    if (!this.failed) this.#worker.postMessage({ ...order, id: ++this.#last, verb });
  }

  /** @param {WgemmaError} error */
  end(error) {
    const failed = (this.failed ??= error);
    this.#worker.terminate();
    for (const { reject } of this.#calls.values()) reject(failed);
    this.#calls.clear();
  }
}

/** @type {Engine | null} */
let idle = null; // an engine without a model: Python takes seconds to start

/** Starts Python before a model is chosen, so that the first one loads sooner. */
export function warm() {
  keep(idle ?? new Engine());
}

/** Keeps one engine for the next model. @param {Engine} engine */
function keep(engine) {
  if (idle && idle !== engine && !idle.failed) engine.end(closed());
  else idle = engine;
}

/** The kept engine, once it is empty, or a new one. */
async function take() {
  const engine = idle ?? new Engine();
  idle = null;
  await engine.unloaded;
  return engine.failed ? new Engine() : engine;
}

// -- models

/** @type {Record<Progress["stage"], (bytes: {loaded: number, total: number}) => string>} */
const STAGES = {
  start: () => "Starting Python",
  download: ({ loaded, total }) => `Downloading: ${human(loaded)} of ${human(total)}`,
  check: () => "Checking the GPU",
  load: ({ loaded, total }) => `Loading: ${human(loaded)} of ${human(total)}`,
  ready: () => "Ready",
};

/**
 * Loads a model from a URL, a file, or a file handle. Of a model in parts, the URL of any one is enough; files are all
 * given, in any order.
 * @param {Source | Source[]} source
 * @param {import("./wgemma").LoadOptions} [options]
 */
export async function load(source, options = {}) {
  const { onProgress, signal, projector = null, ...rest } = options;
  const files = Array.isArray(source) ? source.map((part) => target(part)) : target(source);
  const order = { ...rest, source: files, projector: projector && target(projector), small: isSmall() };
  signal?.throwIfAborted();
  const able = await supported();
  if (!able.ok) throw new WgemmaError("no-webgpu", able.reason);
  const engine = await take();
  const hear = (/** @type {Parts["load"]} */ value) => onProgress?.({ ...value, text: STAGES[value.stage](value) });
  const call = engine.call("load", order, { hear });
  const abort = () => engine.tell("stop", { of: call.id });
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  try {
    const model = new Model(engine, await call);
    if (!signal?.aborted) return model;
    model.close();
    throw signal.reason;
  } catch (error) {
    if (!engine.failed) keep(engine);
    throw signal?.aborted ? signal.reason : error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** A phone, a tablet or a machine with little memory: do not trade memory for speed. */
function isSmall() {
  const { userAgent, userAgentData, maxTouchPoints, deviceMemory = 8 } = navigator;
  const tablet = /Macintosh/.test(userAgent) && maxTouchPoints > 1; // iPads claim to be Macs
  return deviceMemory < 8 || tablet || userAgentData?.mobile || /Mobi|Android|iPhone|iPad/.test(userAgent);
}

/**
 * A URL made absolute, because the Worker has another base; files and handles as they are.
 * @param {Source} source
 */
function target(source, what = "A model") {
  if (source instanceof Blob || source instanceof (globalThis.FileSystemFileHandle ?? Blob)) return source;
  const url = typeof source === "string" || source instanceof URL ? URL.parse(source, document.baseURI) : null;
  if (url) return url.href;
  throw new WgemmaError("settings", `${what} must be a URL, a File or Blob, or a FileSystemFileHandle.`);
}

export class Model {
  #engine;

  /** Made by `load`. @param {Engine} engine @param {ModelInfo} info */
  constructor(engine, info) {
    this.#engine = engine;
    this.info = info;
    /** The loaded adapters and their scales. @type {Record<string, number>} */
    this.adapters = {};
  }

  /**
   * Streams the reply to `messages`; leaving the loop or aborting the signal ends it.
   * @param {import("./wgemma").Message[]} messages
   * @param {import("./wgemma").ChatOptions} [options]
   * @returns {AsyncGenerator<import("./wgemma").Part, void, void>}
   */
  async *chat(messages, { signal, ...options } = {}) {
    const ready = await decoded(messages);
    const order = { messages: ready.messages, options: withAdapter(options) };
    yield* this.#parts("chat", order, signal, ready.transfer);
  }

  /**
   * Streams the parts of a call; leaving the loop or aborting the signal stops it.
   * @template {"chat" | "finetune"} V @param {V} verb @param {object} order
   * @param {AbortSignal} [signal] @param {Transferable[]} [transfer]
   */
  async *#parts(verb, order, signal, transfer = []) {
    const engine = this.#engine;
    /** @type {Queue<Parts[V]>} */
    const parts = new Queue();
    const call = engine.call(verb, order, { hear: (part) => parts.put(part), transfer });
    call.then(() => parts.end(), (error) => parts.end(error));
    const stop = () => engine.tell("stop", { of: call.id });
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    try {
      yield* parts;
    } finally {
      signal?.removeEventListener("abort", stop);
      if (!parts.ended) stop();
    }
  }

  /**
   * The logits after each of `ids`: [ids.length × vocabulary].
   * @param {Iterable<number>} ids @param {{adapter?: AdapterChoice}} [options]
   * @returns {Promise<Float32Array>}
   */
  logits(ids, options = {}) {
    return this.#engine.call("logits", { ids: [...ids], options: withAdapter(options) });
  }

  /** @param {string} text @returns {Promise<number[]>} */
  tokenize(text) {
    return this.#engine.call("tokenize", { text });
  }

  /**
   * A picture as the decoder sees it: [tokens × width].
   * @param {Blob | ImageBitmap | ImageData} image @param {number} [budget] @returns {Promise<Float32Array>}
   */
  async encodeImage(image, budget) {
    const seen = await picture(image);
    const media = { type: "image", image: seen, ...(budget && { budget }) };
    return this.#engine.call("encode", { media }, { transfer: [seen.rgba.buffer] });
  }

  /**
   * A sound as the decoder hears it: [tokens × width].
   * @param {Blob | AudioBuffer | Float32Array} audio @returns {Promise<Float32Array>}
   */
  async encodeAudio(audio) {
    return this.#engine.call("encode", { media: { type: "audio", audio: await sound(audio) } });
  }

  /**
   * Loads a LoRA adapter: a GGUF file, or PEFT's two files. The next call uses it.
   * @param {Source | [Source, Source]} source
   * @param {{name?: string, scale?: number}} [options] @returns {Promise<string>} its name
   */
  async loadAdapter(source, { name = "", scale = 1 } = {}) {
    const files = (Array.isArray(source) ? inOrder(source) : [source]).map((file) => target(file, "An adapter"));
    const told = await this.#engine.call("adapt", { files, name: name || nameOf(files), scale });
    this.adapters = told.adapters;
    return told.name;
  }

  /** Frees an adapter. @param {string} name */
  async unloadAdapter(name) {
    this.adapters = (await this.#engine.call("unadapt", { name })).adapters;
  }

  /**
   * Reports what is in a file of examples, and how many steps these settings would take.
   * @param {Blob | string} data @param {TrainingSettings} [settings]
   * @returns {Promise<import("./wgemma").Examined>}
   */
  async examine(data, { signal: _, ...settings } = {}) {
    return this.#engine.call("examine", { file: fileOf(data), settings: given(settings) });
  }

  /**
   * Trains a LoRA adapter on lines of JSON: yields each step, then the adapter. Aborting the signal or leaving the loop
   * stops after the current step.
   * @param {Blob | string} data @param {TrainingSettings} [settings]
   * @returns {AsyncGenerator<import("./wgemma").TrainingStep | Trained, void, void>}
   */
  async *finetune(data, { signal, ...settings } = {}) {
    const order = { file: fileOf(data), settings: given(settings) };
    for await (const part of this.#parts("finetune", order, signal)) yield "files" in part ? trained(part) : part;
  }

  /** Clears the KV cache. */
  reset() {
    return this.#engine.call("reset");
  }

  /** Bytes in use: {heap, gpu}. */
  stats() {
    return this.#engine.call("stats");
  }

  /** Frees all memory and closes the model's file. */
  close() {
    const engine = this.#engine;
    if (engine.failed) return Promise.resolve();
    const none = { call: () => Promise.reject(closed()), tell() {}, failed: closed() };
    this.#engine = /** @type {Engine} */ (/** @type {unknown} */ (none)); // nothing else of it is used
    engine.unloaded = engine.call("unload").catch(() => engine.end(closed()));
    keep(engine);
    return engine.unloaded;
  }
}

/**
 * Options for Python, where null means "not given": the bare model is an empty set of adapters.
 * @param {{adapter?: AdapterChoice}} options
 */
function withAdapter(options) {
  return options.adapter === null ? { ...options, adapter: {} } : options;
}

/** PEFT's two files, the configuration first. @param {Source[]} files */
function inOrder(files) {
  const isConfig = (/** @type {Source} */ file) => /\.json$/i.test(calledBy(file) ?? String(file));
  if (files.length !== 2) {
    throw new WgemmaError(
      "adapter",
      "An adapter is a .gguf file, or PEFT's adapter_config.json and adapter_model.safetensors.",
    );
  }
  return isConfig(files[1]) && !isConfig(files[0]) ? [files[1], files[0]] : files;
}

/** The default name of an adapter: its file's, if it is a single one. @param {Source[]} files */
function nameOf(files) {
  const name = files.length === 1 ? (calledBy(files[0]) ?? String(files[0]).split(/[?#]/)[0].split("/").pop()) : "";
  return name?.replace(/\.gguf$/i, "") || "adapter";
}

/** The name of a file or a handle. @param {Source} source */
function calledBy(source) {
  return typeof source === "object" && "name" in source ? source.name : undefined;
}

/** @param {Blob | string} data */
function fileOf(data) {
  if (data instanceof Blob) return data;
  if (typeof data === "string") return new Blob([data]);
  throw new WgemmaError("data", "Examples must be a File, a Blob or a string, with one JSON object per line.");
}

/** Without settings that are null or undefined. @param {TrainingSettings} settings */
function given(settings) {
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== undefined && value !== null));
}

/** @param {Files} part @returns {Trained} */
function trained({ files, ...told }) {
  const adapter = {
    gguf: files["adapter.gguf"],
    config: files["adapter_config.json"],
    safetensors: files["adapter_model.safetensors"],
    card: files["README.md"],
    curve: files["loss.svg"],
  };
  return { ...told, adapter };
}

function closed() {
  return new WgemmaError("worker", "This model is closed. Load it again.");
}

/**
 * An asynchronous queue: `put` on one side, iterate on the other.
 * @template T
 */
class Queue {
  /** @type {T[]} */ #items = [];
  /** @type {unknown} */ #error = null;
  /** @type {(() => void) | null} */ #wake = null;
  ended = false;

  /** @param {T} item */
  put(item) {
    this.#items.push(item);
    this.#wake?.();
  }

  /** @param {unknown} [error] */
  end(error = null) {
    this.ended = true;
    this.#error = error;
    this.#wake?.();
  }

  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (this.#items.length) yield /** @type {T} */ (this.#items.shift());
      if (this.#error) throw this.#error;
      if (this.ended) return;
      await new Promise((/** @type {(_: void) => void} */ resolve) => (this.#wake = resolve));
    }
  }
}
