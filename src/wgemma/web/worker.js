/**
 * The engine's Worker: starts Python, unpacks the package, and passes messages to wgemma/page.py.
 *
 *   in    {id, verb, …}                 load, chat, stop, logits, tokenize, encode, reset, stats, unload,
 *                                       adapt, unadapt, examine, finetune
 *   out   {id, kind: "progress" | "part", value}, then {id, kind: "result", value} or {id, kind: "error", code, message}
 *
 * A model's bytes are opened here and read here; Python gets a handle. Everything else is fetched from beside this file:
 * nothing comes from anywhere else.
 */

import { ReadAhead } from "./ahead.js";
import { FileSource } from "./file.js";
import { loadPyodide } from "./pyodide/pyodide.mjs";
import { openGpu } from "./replay.js";
import { verdicts } from "./opfs.js";
import { openSource } from "./sources.js";
import { WgemmaError } from "./trouble.js";

const here = (path) => new URL(path, import.meta.url).href;
const EVERY = 100; // milliseconds between two reports of a download
const loading = new Map(); // message id → {stop: AbortController, downloading: boolean}
const preparing = new Map(); // message id → its order, when Python can have it

/** Things that Python keeps in JavaScript's memory: a class of its own, so that nobody unpacks them on the way. */
class Kept {
  constructor(value) {
    Object.assign(this, value);
  }

  /** Rows [first, last) of a picture. */
  rows(first, last) {
    return this.rgba.subarray(4 * this.width * first, 4 * this.width * last);
  }
}

// -- Python

/** Python with the package imported: its `Page`. */
async function start() {
  const [pyodide, archive] = await Promise.all([
    loadPyodide({ indexURL: here("./pyodide/") }),
    fetched("./wgemma.zip"),
  ]);
  pyodide.unpackArchive(archive, "zip", { extractDir: "/lib/wgemma" });
  const heap = () => pyodide._module.HEAPU8.length;
  const Page = pyodide.runPython("import sys; sys.path.append('/lib/wgemma'); from wgemma.page import Page; Page");
  const page = Page({ openGpu, verdicts, heap, browser: navigator.userAgent });
  return { answer: page.answer, FS: pyodide.FS };
}

async function fetched(path) {
  const answer = await fetch(here(path));
  if (!answer.ok) throw new Error(`${path} was answered with ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

const page = start().catch((error) => {
  throw new WgemmaError("worker", `Python could not be started: ${error.message}`);
});
page.catch(() => {}); // whoever asks hears of it

// -- messages

self.onmessage = async ({ data }) => {
  const { id, verb } = data;
  const began = performance.now();
  const post = (kind, value, transfer = []) => self.postMessage({ id, kind, ...value }, transfer);
  if (verb === "stop") {
    loading.get(data.of)?.stop.abort(); // what is still in JavaScript's hands
    await preparing.get(data.of)?.catch(() => {}); // Python is not told to stop what it has not heard of
  }
  const sources = [];
  try {
    preparing.set(id, prepared(data, post, sources));
    const order = new Kept(await preparing.get(id));
    for (const part of partsOf(order)) if (part.image?.rgba) part.image = new Kept(part.image);
    order.opened = performance.now() - began;
    const { answer, FS } = await page;
    order.waited = performance.now() - began - order.opened; // for Python
    loading.get(id)?.stop.signal.throwIfAborted();
    await answer(order, (kind, text, floats) => {
      if (kind === "progress" && loading.get(id)?.downloading) return; // one bar at a time
      if (kind === "files") return post("part", { value: withFiles(JSON.parse(text), FS) });
      if (!floats) return post(kind, kind === "error" ? JSON.parse(text) : { value: JSON.parse(text) });
      const view = floats.getBuffer("u8");
      const value = new Float32Array(view.data.slice().buffer);
      view.release();
      post(kind, { value }, [value.buffer]);
    });
  } catch (error) {
    for (const source of sources) source.close();
    post("error", { code: error instanceof WgemmaError ? error.code : "worker", message: error.message });
  } finally {
    loading.delete(id);
    preparing.delete(id);
  }
};

/** An order with what Python needs of it in its hands: open sources, which `sources` gets too, or a file's bytes. */
async function prepared(order, post, sources) {
  if (order.verb === "load") return opened(order, post, sources);
  if (order.verb === "adapt") {
    sources.push(...(await Promise.all(order.files.map(whole))));
    return { ...order, sources };
  }
  if (!order.file) return order;
  const { name = "" } = order.file;
  return { ...order, name: name || "the data", data: new Uint8Array(await order.file.arrayBuffer()) };
}

/** A small file as a source, fetched first if it is an address. @param {string | Blob | FileSystemFileHandle} target */
async function whole(target) {
  if (typeof target !== "string") return openSource(target);
  const answer = await fetch(target).catch(() => null);
  const said = answer ? `the server says ${answer.status}` : "no answer";
  if (!answer?.ok) throw new WgemmaError("network", `${target} cannot be had: ${said}.`);
  return new ReadAhead(new FileSource(await answer.blob(), decodeURIComponent(new URL(target).pathname.split("/").pop())));
}

/** What Python tells of files in its own memory, with the files themselves. */
function withFiles({ folder, ...told }, FS) {
  const names = FS.readdir(folder).filter((name) => FS.isFile(FS.stat(`${folder}/${name}`).mode));
  const files = Object.fromEntries(names.map((name) => [name, new File([FS.readFile(`${folder}/${name}`)], name)]));
  return { ...told, files };
}

/** An order to load with its sources open, which `sources` gets too; Python starts meanwhile. */
async function opened(order, post, sources) {
  const state = { stop: new AbortController(), downloading: false };
  loading.set(order.id, state);
  const tell = (stage, loaded, total) => post("progress", { value: { stage, loaded, total } });
  tell("start", 0, 0);
  const how = { save: order.save, signal: state.stop.signal };
  let told = 0;
  const progress = (loaded, total) => {
    state.downloading = loaded < total;
    if (performance.now() - told < EVERY && state.downloading) return;
    told = performance.now();
    tell("download", loaded, total);
  };
  sources.push(await openSource(order.source, { ...how, sha256: order.sha256, progress }));
  if (order.projector) sources.push(await openSource(order.projector, how));
  const [source, projector = null] = sources;
  return { name: "", context: null, kv: "f16", precision: "fast", ple: "auto", ...order, source, projector };
}

function partsOf({ messages = [], media }) {
  const parts = messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
  return media ? [...parts, media] : parts;
}
