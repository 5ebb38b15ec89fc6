/**
 * The engine's Worker: starts Python, unpacks the package, and passes messages to wgemma/worker.py.
 *
 *   in    {id, verb, …}                 load, chat, stop, logits, tokenize, encode, reset, stats, unload,
 *                                       adapt, unadapt, examine, finetune
 *   out   {id, kind: "progress" | "part", value}, then {id, kind: "result", value} or {id, kind: "error", code, message}
 *
 * Model files are opened and read here; Python gets a handle. All code comes from beside this file, never from another
 * origin.
 */

/**
 * @typedef {string | Blob | FileSystemFileHandle} Target an absolute address, or a file
 * @typedef {{type?: string, image?: {width: number, height: number, rgba: Uint8Array, key: string} | Picture}} Part
 * @typedef {{verb: "load", source: Target | Target[], projector: Target | null, save?: boolean, sha256?: string}} Load
 * @typedef {{verb: "adapt", files: Target[]}} Adapt
 * @typedef {{verb: "stop", of: number}} Stop
 * @typedef {{verb: "chat" | "logits" | "tokenize" | "encode" | "reset" | "stats" | "unload" | "unadapt" | "examine" | "finetune",
 *   file?: Blob, messages?: {content?: unknown}[], media?: Part}} Other
 * @typedef {{id: number} & (Load | Adapt | Stop | Other)} Order
 * @typedef {(kind: string, value: object, transfer?: Transferable[]) => void} Post
 * @typedef {import("./sources.js").Source} Source
 */

import { ReadAhead } from "./ahead.js";
import { FileSource } from "./file.js";
import { loadPyodide } from "./pyodide/pyodide.mjs";
import { openGpu } from "./replay.js";
import { verdicts } from "./opfs.js";
import { partUrls } from "./parts.js";
import { openSource } from "./sources.js";
import { WgemmaError } from "./trouble.js";

/** @param {string} path */
const here = (path) => new URL(path, import.meta.url).href;
const EVERY = 100; // milliseconds between download reports
/** @type {Map<number, {stop: AbortController, downloading: boolean}>} by message id */
const loading = new Map();
/** @type {Map<number, Promise<object>>} by message id: the order, once it is ready for Python */
const preparing = new Map();

/** What Python holds a proxy to. Pyodide would convert plain objects, but not instances of a class. */
class Kept {
  /** @param {object} value */
  constructor(value) {
    Object.assign(this, value);
  }
}

class Picture {
  /** @param {{width: number, height: number, rgba: Uint8Array, key: string}} image */
  constructor({ width, height, rgba, key }) {
    this.width = width;
    this.height = height;
    this.rgba = rgba;
    this.key = key;
  }

  /** Rows [first, last). @param {number} first @param {number} last */
  rows(first, last) {
    return this.rgba.subarray(4 * this.width * first, 4 * this.width * last);
  }
}

// -- Python

/**
 * Starts Python and imports the package.
 * @typedef {(order: Kept, post: (kind: string, text: string, floats?: PyArray) => void) => Promise<void>} Answer
 */
async function start() {
  const [pyodide, archive] = await Promise.all([
    loadPyodide({ indexURL: here("./pyodide/"), convertNullToNone: true }),
    fetched("./wgemma.zip"),
  ]);
  pyodide.unpackArchive(archive, "zip", { extractDir: "/lib/wgemma" });
  const heap = () => pyodide._module.HEAPU8.length;
  const found = pyodide.runPython("import sys; sys.path.append('/lib/wgemma'); from wgemma.worker import Worker; Worker");
  const Worker = /** @type {(home: object) => {answer: Answer}} */ (found);
  const page = Worker({ openGpu, verdicts, heap, browser: navigator.userAgent });
  return { answer: page.answer, FS: pyodide.FS };
}

/** @param {string} path */
async function fetched(path) {
  const answer = await fetch(here(path));
  if (!answer.ok) throw new Error(`${path} was answered with ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

const page = start().catch((error) => {
  throw new WgemmaError("worker", `Python did not start: ${error.message}`);
});
page.catch(() => {}); // reported to each message

// -- messages

self.onmessage = async (/** @type {MessageEvent<Order>} */ { data }) => {
  const { id } = data;
  const began = performance.now();
  /** @type {Post} */
  const post = (kind, value, transfer = []) => self.postMessage({ id, kind, ...value }, transfer);
  if (data.verb === "stop") {
    loading.get(data.of)?.stop.abort(); // what JavaScript is still doing
    await preparing.get(data.of)?.catch(() => {}); // Python must have the order before it can stop it
  }
  /** @type {Source[]} */
  const sources = [];
  try {
    const preparation = prepared(data, post, sources);
    preparing.set(id, preparation);
    const order = await preparation;
    for (const part of partsOf(data)) if (part.image?.rgba) part.image = new Picture(part.image);
    const opened = performance.now() - began;
    const { answer, FS } = await page;
    const waited = performance.now() - began - opened; // until Python was ready
    loading.get(id)?.stop.signal.throwIfAborted();
    await answer(new Kept({ ...order, opened, waited }), (kind, text, floats) => {
      if (kind === "progress" && loading.get(id)?.downloading) return; // show the download only
      if (kind === "files") return post("part", { value: withFiles(JSON.parse(text), FS) });
      if (!floats) return post(kind, kind === "error" ? JSON.parse(text) : { value: JSON.parse(text) });
      const view = floats.getBuffer("u8");
      const value = new Float32Array(view.data.slice().buffer);
      view.release();
      post(kind, { value }, [value.buffer]);
    });
  } catch (error) {
    for (const source of sources) source.close();
    const { message } = /** @type {Error} */ (error);
    post("error", { code: error instanceof WgemmaError ? error.code : "worker", message });
  } finally {
    loading.delete(id);
    preparing.delete(id);
  }
};

/**
 * An order ready for Python: with open sources, which are added to `sources`, or with a file's bytes.
 * @param {Order} order @param {Post} post @param {Source[]} sources
 */
async function prepared(order, post, sources) {
  if (order.verb === "load") return opened(order, post, sources);
  if (order.verb === "adapt") {
    sources.push(...(await Promise.all(order.files.map(whole))));
    return { ...order, sources };
  }
  if (order.verb === "stop" || !order.file) return order;
  const name = order.file instanceof File ? order.file.name : "";
  return { ...order, name: name || "the data", data: new Uint8Array(await order.file.arrayBuffer()) };
}

/** A small file as a source; a URL is fetched first. @param {Target} target */
async function whole(target) {
  if (typeof target !== "string") return openSource(target);
  const answer = await fetch(target).catch(() => null);
  const said = answer ? `the server says ${answer.status}` : "no answer";
  if (!answer?.ok) throw new WgemmaError("network", `${target} cannot be fetched: ${said}.`);
  return new ReadAhead(new FileSource(await answer.blob(), decodeURIComponent(new URL(target).pathname.split("/").at(-1) ?? "")));
}

/**
 * Python's report with the files it wrote to its own file system.
 * @param {{folder: string}} told @param {PyFiles} FS
 */
function withFiles({ folder, ...told }, FS) {
  const names = FS.readdir(folder).filter((name) => FS.isFile(FS.stat(`${folder}/${name}`).mode));
  const files = Object.fromEntries(names.map((name) => [name, new File([FS.readFile(`${folder}/${name}`)], name)]));
  return { ...told, files };
}

/**
 * An order to load with its sources open; they are added to `sources`. Python starts in the meantime.
 * @param {{id: number} & Load} order @param {Post} post @param {Source[]} sources
 */
async function opened(order, post, sources) {
  const state = { stop: new AbortController(), downloading: false };
  loading.set(order.id, state);
  const tell = (/** @type {string} */ stage, /** @type {number} */ loaded, /** @type {number} */ total) =>
    post("progress", { value: { stage, loaded, total } });
  tell("start", 0, 0);
  const how = { save: order.save, signal: state.stop.signal };
  let told = 0;
  /** @type {[number, number][]} bytes here and in all, of each part */
  const parts = [];
  const progress = (/** @type {number} */ part) => (/** @type {number} */ loaded, /** @type {number} */ total) => {
    parts[part] = [loaded, total];
    const [here, all] = parts.reduce((sum, [a, b]) => [sum[0] + a, sum[1] + b], [0, 0]);
    state.downloading = here < all;
    if (performance.now() - told < EVERY && state.downloading) return;
    told = performance.now();
    tell("download", here, all);
  };
  const targets = targetsOf(order.source);
  const sha256 = targets.length === 1 ? order.sha256 : undefined;
  for (const [i, target] of targets.entries()) {
    sources.push(await openSource(target, { ...how, sha256, progress: progress(i) }));
  }
  const source = [...sources];
  if (order.projector) sources.push(await openSource(order.projector, how));
  const projector = sources[targets.length] ?? null;
  const unsaid = { name: "", context: null, kv: "f16", precision: "fast", ple: "auto", system: null, messages: null };
  return { ...unsaid, ...order, source, projector };
}

/** A model's files: all its parts, of which one URL is enough. @param {Target | Target[]} source */
function targetsOf(source) {
  if (Array.isArray(source)) return source;
  return typeof source === "string" ? partUrls(new URL(source, self.location.href).href) : [source];
}

/** @param {Order} order @returns {Part[]} */
function partsOf(order) {
  const { messages = [], media } = /** @type {Other} */ (order);
  const parts = messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
  return media ? [...parts, media] : parts;
}
