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
 * Types are in wgemma.d.ts. Everything that goes wrong is a `WgemmaError`: its message is a sentence to show as it is,
 * its `code` is one of those in trouble.js.
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

// -- whether it can work here

/**
 * Whether this browser can run a model, and on which adapter; if not, what would help.
 * @returns {Promise<{ok: true, adapter: string} | {ok: false, reason: string}>}
 */
export async function supported() {
  /** @param {string} text @returns {{ok: false, reason: string}} */
  const reason = (text) => ({ ok: false, reason: text });
  if (!globalThis.isSecureContext) {
    return reason("WebGPU works on secure pages only: open this page by https, or at http://localhost.");
  }
  if (!navigator.gpu) {
    return reason(
      "This browser has no WebGPU. Use Chrome or Edge from 113, Safari from 26, or Firefox from 141, and keep it up to date.",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) {
    return reason(
      "WebGPU finds no GPU here. Switch on hardware acceleration in the browser's settings and update the GPU's driver; " +
        "on Linux, Chrome may need chrome://flags/#enable-unsafe-webgpu.",
    );
  }
  const { description, vendor, architecture } = adapter.info ?? {};
  return { ok: true, adapter: description || [vendor, architecture].filter(Boolean).join(" ") || "a WebGPU adapter" };
}

// -- the engine's Worker

/**
 * What the Worker answers to each verb, and what comes before the answer.
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
  unloaded = Promise.resolve(); // when its last model has given everything back

  constructor() {
    this.#worker.onmessage = ({ data }) => this.#hear(data);
    this.#worker.onerror = (event) => {
      event.preventDefault?.();
      this.end(new WgemmaError("worker", `The engine could not go on: ${event.message || "its Worker failed"}. Load the model again.`));
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
   * Sends an order; `hear` gets what comes before the result.
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

  /** Sends an order that nobody waits for. @param {"stop"} verb @param {{of: number}} order */
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

/** Starts Python before a model is chosen, so that the first one is ready sooner. */
export function warm() {
  keep(idle ?? new Engine());
}

/** Keeps an engine for the next model; one is enough. @param {Engine} engine */
function keep(engine) {
  if (idle && idle !== engine && !idle.failed) engine.end(closed());
  else idle = engine;
}

/** The engine that was kept, as soon as it is empty, or a new one. */
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
 * Loads a model from an address, a picked file, or a handle to one.
 * @param {Source} source
 * @param {import("./wgemma").LoadOptions} [options]
 */
export async function load(source, options = {}) {
  const { onProgress, signal, projector = null, ...rest } = options;
  const order = { ...rest, source: target(source), projector: projector && target(projector), small: isSmall() };
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

/** Whether this is a phone, a tablet or a machine with little memory, which is not to be filled for speed's sake. */
function isSmall() {
  const { userAgent, userAgentData, maxTouchPoints, deviceMemory = 8 } = navigator;
  const tablet = /Macintosh/.test(userAgent) && maxTouchPoints > 1; // an iPad says that it is a Mac
  return deviceMemory < 8 || tablet || userAgentData?.mobile || /Mobi|Android|iPhone|iPad/.test(userAgent);
}

/**
 * An address made absolute, because a Worker has another base; a file or a handle as it is.
 * @param {Source} source
 */
function target(source, what = "A model") {
  if (source instanceof Blob || source instanceof (globalThis.FileSystemFileHandle ?? Blob)) return source;
  const url = typeof source === "string" || source instanceof URL ? URL.parse(source, document.baseURI) : null;
  if (url) return url.href;
  throw new WgemmaError("settings", `${what} comes from an address, a File or Blob, or a FileSystemFileHandle.`);
}

export class Model {
  #engine;

  /** Made by `load`. @param {Engine} engine @param {ModelInfo} info */
  constructor(engine, info) {
    this.#engine = engine;
    this.info = info;
    /** The adapters that are loaded, and their scales. @type {Record<string, number>} */
    this.adapters = {};
  }

  /**
   * The reply to `messages`, part by part; leaving the loop, or aborting the signal, ends it.
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
   * What comes before the result of an order; leaving the loop, or aborting the signal, stops it.
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
   * The logits after every one of `ids`: [ids.length × vocabulary].
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
   * Loads a LoRA adapter: a GGUF file, or the two files of PEFT. It is at work from the next call on.
   * @param {Source | [Source, Source]} source
   * @param {{name?: string, scale?: number}} [options] @returns {Promise<string>} its name
   */
  async loadAdapter(source, { name = "", scale = 1 } = {}) {
    const files = (Array.isArray(source) ? inOrder(source) : [source]).map((file) => target(file, "An adapter"));
    const told = await this.#engine.call("adapt", { files, name: name || nameOf(files), scale });
    this.adapters = told.adapters;
    return told.name;
  }

  /** Gives an adapter's memory back. @param {string} name */
  async unloadAdapter(name) {
    this.adapters = (await this.#engine.call("unadapt", { name })).adapters;
  }

  /**
   * What is in a file of examples, and how long a training with these settings would be.
   * @param {Blob | string} data @param {TrainingSettings} [settings]
   * @returns {Promise<import("./wgemma").Examined>}
   */
  async examine(data, { signal: _, ...settings } = {}) {
    return this.#engine.call("examine", { file: fileOf(data), settings: given(settings) });
  }

  /**
   * Trains a LoRA adapter on lines of JSON: step after step, and at last what was learnt. Aborting the signal, or leaving
   * the loop, ends it after the step that is under way.
   * @param {Blob | string} data @param {TrainingSettings} [settings]
   * @returns {AsyncGenerator<import("./wgemma").TrainingStep | Trained, void, void>}
   */
  async *finetune(data, { signal, ...settings } = {}) {
    const order = { file: fileOf(data), settings: given(settings) };
    for await (const part of this.#parts("finetune", order, signal)) yield "files" in part ? trained(part) : part;
  }

  /** Forgets the chat: the next one is computed anew. */
  reset() {
    return this.#engine.call("reset");
  }

  /** What is used, in bytes: {heap, gpu}. */
  stats() {
    return this.#engine.call("stats");
  }

  /** Gives all memory back, and the file it was read from; resolves when that is done. */
  close() {
    const engine = this.#engine;
    if (engine.failed) return Promise.resolve();
    const none = { call: () => Promise.reject(closed()), tell() {}, failed: closed() };
    this.#engine = /** @type {Engine} */ (/** @type {unknown} */ (none)); // what is not there is not asked of it
    engine.unloaded = engine.call("unload").catch(() => engine.end(closed()));
    keep(engine);
    return engine.unloaded;
  }
}

/**
 * Options for Python, to which null means nothing: the bare model is no scale of no adapter.
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

/** What an adapter is called when nobody says: as its file, if that is its own. @param {Source[]} files */
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
  throw new WgemmaError("data", "Examples come as a File, a Blob or a text: one JSON object per line.");
}

/** The settings that are set. @param {TrainingSettings} settings */
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
 * What comes between two asynchronous ends: put on one side, iterated on the other.
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
