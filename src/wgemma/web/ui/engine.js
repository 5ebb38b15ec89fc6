/**
 * The page's model and its state. Wraps wgemma.js; knows nothing of chats or of the page.
 *
 *   starting → unsupported
 *            → empty ⇄ loading → ready ⇄ answering       (a lost device leads back to empty)
 *                                      ⇄ training
 *
 * Dispatches "change" whenever any of this changes.
 *
 * @typedef {import("./models.js").Entry} Entry
 * @typedef {import("../wgemma").Model} Model
 * @typedef {"starting"|"unsupported"|"empty"|"loading"|"ready"|"answering"|"training"} State
 * @typedef {{stage: string, loaded: number, total: number, text: string, rate: number}} Progress
 */

import { load, supported, warm } from "../wgemma.js";

export const LEARNING = "The model is training. Stop it first, or wait until it is done.";

export class Engine extends EventTarget {
  /** @type {State} */ state = "starting";
  /** @type {Entry | null} what is loaded or being loaded */ entry = null;
  /** @type {Model | null} */ model = null;
  /** @type {Progress | null} */ progress = null;
  /** @type {unknown} why the last load failed */ error = null;
  /** why there is no WebGPU */ reason = "";
  /** @type {Promise<Model | null>} the last load, running or done */ #loading = Promise.resolve(null);
  #stop = new AbortController();

  /** Checks whether this browser can run a model. */
  async start() {
    const found = await supported();
    this.reason = found.ok ? "" : found.reason;
    this.#become(found.ok ? "empty" : "unsupported");
    if (found.ok) warm();
  }

  get info() {
    return this.model?.info ?? null;
  }

  /** @param {State} state */
  #become(state) {
    this.state = state;
    this.dispatchEvent(new Event("change"));
  }

  /** Whether this model is loaded or loading. @param {Entry} entry */
  holds(entry) {
    return this.entry === entry && ["loading", "ready", "answering", "training"].includes(this.state);
  }

  /**
   * Loads a model, replacing the current one. Loading the same one again returns the same promise.
   * @param {Entry} entry @param {{context?: number, save?: boolean}} [how] @returns {Promise<Model | null>}
   */
  load(entry, how = {}) {
    if (this.state === "unsupported") return Promise.reject(new Error(this.reason));
    if (this.holds(entry)) return this.#loading;
    this.#stop.abort();
    const stop = (this.#stop = new AbortController());
    const before = this.#loading;
    this.#release();
    this.entry = entry;
    this.error = null;
    this.progress = { stage: "start", loaded: 0, total: 0, text: "", rate: 0 };
    const loading = this.#load(entry, how, stop.signal, before);
    this.#loading = loading;
    loading.catch(() => {}); // `error` reports it
    this.#become("loading");
    return loading;
  }

  /**
   * @param {Entry} entry @param {{context?: number, save?: boolean}} how @param {AbortSignal} signal
   * @param {Promise<unknown>} before
   */
  async #load(entry, how, signal, before) {
    await before.catch(() => {}); // two models at once might not fit
    const meter = new Meter();
    /** @type {Model | null} */
    let model = null;
    try {
      signal.throwIfAborted();
      model = await load(entry.files ?? entry.url ?? "", {
        ...how,
        name: entry.name,
        system: entry.system,
        messages: entry.messages,
        ...(entry.projector && { projector: entry.projector }),
        ...(entry.sha256 && { sha256: entry.sha256 }),
        signal,
        onProgress: (told) => {
          if (signal.aborted) return;
          this.progress = meter.read(told);
          if (meter.isDue()) this.dispatchEvent(new Event("change"));
        },
      });
      for (const [i, adapter] of entry.adapters.entries()) {
        signal.throwIfAborted();
        await model.loadAdapter(adapter, { name: i ? `${entry.name} ${i + 1}` : entry.name });
      }
      signal.throwIfAborted();
      this.model = model;
      this.progress = null;
      this.#become("ready");
      return model;
    } catch (error) {
      model?.close();
      if (!signal.aborted) this.#fail(error);
      throw error;
    }
  }

  /** Dismisses the error. */
  forgive() {
    this.error = null;
    this.dispatchEvent(new Event("change"));
  }

  /** Stops loading. */
  cancel() {
    if (this.state !== "loading") return;
    this.#stop.abort();
    this.#fail(null);
  }

  /** @param {unknown} error */
  #fail(error) {
    this.#release();
    this.entry = null;
    this.progress = null;
    this.error = error;
    this.#become("empty");
  }

  #release() {
    this.model?.close();
    this.model = null;
  }

  /**
   * Streams an answer.
   * @param {import("../wgemma").Message[]} messages @param {import("../wgemma").ChatOptions} options
   */
  chat(messages, options) {
    return this.#working("answering", (model) => model.chat(messages, options));
  }

  /**
   * Streams the steps of a training, then the adapter.
   * @param {Blob} data @param {import("../wgemma").TrainingSettings} settings
   */
  finetune(data, settings) {
    return this.#working("training", (model) => model.finetune(data, settings));
  }

  /** @template T @param {State} state @param {(model: Model) => AsyncGenerator<T, void, void>} work */
  async *#working(state, work) {
    const { model } = this;
    if (!model) throw new Error("There is no model. Load one first.");
    this.#become(state);
    try {
      yield* work(model);
    } catch (error) {
      const { code } = /** @type {{code?: string}} */ (error);
      if (code === "device-lost" || code === "worker") this.#fail(error);
      throw error;
    } finally {
      if (this.state === state && this.model === model) this.#become("ready");
    }
  }
}

/**
 * Progress and rate of loading. Models load while they download; until the download is done, it is what is shown.
 */
class Meter {
  /** @type {Map<string, [number, number][]>} times and bytes of the last seconds, by stage */ #seen = new Map();
  /** @type {Progress | null} */ #download = null;
  #told = 0;

  /** Throttles reports: some sources report every few kilobytes. */
  isDue() {
    const now = performance.now();
    const due = now - this.#told > 50;
    if (due) this.#told = now;
    return due;
  }

  /** @param {{stage: string, loaded?: number, total?: number, text?: string}} told @returns {Progress} */
  read({ stage, loaded = 0, total = 0, text = "" }) {
    const progress = { stage, loaded, total, text, rate: this.#rate(stage, loaded) };
    if (stage === "download") this.#download = progress;
    const coming = this.#download && this.#download.loaded < this.#download.total;
    return coming && this.#download ? this.#download : progress;
  }

  /** @param {string} stage @param {number} loaded */
  #rate(stage, loaded) {
    const now = performance.now();
    const seen = this.#seen.get(stage) ?? [];
    this.#seen.set(stage, seen);
    seen.push([now, loaded]);
    while (seen.length > 2 && now - seen[0][0] > 3000) seen.shift();
    const [then, before] = seen[0];
    return now - then > 200 ? (1000 * (loaded - before)) / (now - then) : 0;
  }
}
