/**
 * The engine's Worker: starts Python, unpacks the package, and passes messages to wgemma/page.py.
 *
 *   in    {id, verb, …}                 load, chat, stop, logits, tokenize, encode, reset, stats, unload
 *   out   {id, kind: "progress" | "part", value}, then {id, kind: "result", value} or {id, kind: "error", code, message}
 *
 * A model's bytes are opened here and read here; Python gets a handle. Everything else is fetched from beside this file:
 * nothing comes from anywhere else.
 */

import { loadPyodide } from "./pyodide/pyodide.mjs";
import { openGpu } from "./replay.js";
import { verdicts } from "./opfs.js";
import { openSource } from "./sources.js";
import { WgemmaError } from "./trouble.js";

const here = (path) => new URL(path, import.meta.url).href;
const EVERY = 100; // milliseconds between two reports of a download
const loading = new Map(); // message id → AbortController

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
  return Page({ openGpu, verdicts, heap, browser: navigator.userAgent });
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
  const post = (kind, value, transfer = []) => self.postMessage({ id, kind, ...value }, transfer);
  if (verb === "abort") return loading.get(data.of)?.abort();
  const sources = [];
  try {
    const order = new Kept(verb === "load" ? await opened(data, post, sources) : data);
    for (const part of partsOf(order)) if (part.image?.rgba) part.image = new Kept(part.image);
    const { answer } = await page;
    await answer(order, (kind, text, floats) => {
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
  }
};

/** An order to load with its sources open, which `sources` gets too; Python starts meanwhile. */
async function opened(order, post, sources) {
  const stop = new AbortController();
  loading.set(order.id, stop);
  const tell = (stage, loaded, total) => post("progress", { value: { stage, loaded, total } });
  tell("start", 0, 0);
  const how = { save: order.save, signal: stop.signal };
  let told = 0;
  const progress = (loaded, total) => {
    if (performance.now() - told < EVERY && loaded < total) return;
    told = performance.now();
    tell("download", loaded, total);
  };
  sources.push(await openSource(order.source, { ...how, sha256: order.sha256, progress }));
  if (order.projector) sources.push(await openSource(order.projector, how));
  const [source, projector = null] = sources;
  return { name: "", context: null, ple: "auto", ...order, source, projector };
}

function partsOf({ messages = [], media }) {
  const parts = messages.flatMap(({ content }) => (Array.isArray(content) ? content : []));
  return media ? [...parts, media] : parts;
}
