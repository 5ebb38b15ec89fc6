/**
 * The benchmark as a page of its own. Its URL says what to do:
 *
 *   ?model=URL              the model to load; without it, choose one on the page
 *   &ple=gpu|host           where the per-layer table lives
 *   &precision=fast|exact
 *   &save=0                 do not keep the download
 *   &autorun=0|1            start at once or wait for the button; 1 if the URL names a model
 *
 * For scripts: <html data-bench> becomes "done" or "failed", and `benchResult` is the result of bench.js.
 *
 * @typedef {{key: string, name: string, group: string, size: number, quantisation: string, url?: string, files?: File[],
 *   sha256?: string}} Choice
 */

import { bench } from "./bench.js";
import { BenchView } from "./ui/bench_view.js";
import { h, part, placeIcons } from "./ui/dom.js";
import { bytes } from "./ui/format.js";
import { listenToFiles } from "./ui/input.js";
import { fromFiles, offeredModels, unique } from "./ui/models.js";
import { themeButton } from "./ui/theme_button.js";
import { hideToken } from "./ui/token.js";
import { load, supported } from "./wgemma.js";

const address = new URLSearchParams(location.search);
const select = part("bench-model");
/** The options of `load` in the URL. */
const settings = Object.fromEntries([...address].filter(([name]) => name === "ple" || name === "precision"));
/** @type {Choice[]} */ let choices = [];
/** @type {{choice: Choice, model: import("./wgemma").Model} | null} */ let loaded = null;
let reason = ""; // why no model can run

const view = new BenchView(measure, (result) => {
  Object.assign(globalThis, { benchResult: result });
  document.documentElement.dataset.bench = result ? "done" : "failed";
  select.disabled = part("bench-file").disabled = false;
});

/** @param {(progress: import("./ui/bench_view.js").Progress) => void} tell @param {AbortSignal} signal */
async function measure(tell, signal) {
  delete document.documentElement.dataset.bench;
  select.disabled = part("bench-file").disabled = true;
  const model = await modelOf(chosen(), tell, signal);
  const result = await bench(model, { signal, onProgress: tell });
  return Object.keys(settings).length ? { ...result, settings } : result;
}

/**
 * The chosen model; loads it if necessary.
 * @param {Choice} choice @param {(progress: import("./ui/bench_view.js").Progress) => void} tell
 * @param {AbortSignal} signal
 */
async function modelOf(choice, tell, signal) {
  if (loaded?.choice === choice) return loaded.model;
  await loaded?.model.close();
  loaded = null;
  const model = await load(choice.files ?? choice.url ?? "", {
    ...settings,
    name: choice.name,
    ...(choice.sha256 && { sha256: choice.sha256 }),
    ...(address.get("save") === "0" && { save: false }),
    signal,
    onProgress: ({ text, loaded, total }) => tell({ text, share: total ? loaded / total : null }),
  });
  loaded = { choice, model };
  return model;
}

// -- choosing

/** @returns {Choice} */
const chosen = () => choices.find((choice) => choice.key === select.value) ?? choices[0];

/** @param {Choice} [choice] preselected */
function fill(choice = chosen()) {
  const groups = new Set(choices.map(({ group }) => group));
  const options = (/** @type {string} */ label) => choices.filter(({ group }) => group === label).map(option);
  select.replaceChildren(...[...groups].map((label) => h("optgroup", { label }, ...options(label))));
  if (choice) select.value = choice.key;
  else select.append(h("option", { value: "" }, "Open a .gguf file →"));
  view.able(reason || (choice ? "" : "No model yet. Open a .gguf file."));
}

/** @param {Choice} choice */
function option({ key, name, size, quantisation }) {
  return h("option", { value: key }, [name, size && bytes(size), quantisation].filter(Boolean).join("  ·  "));
}

/** The model the URL names: one of the list, or another. @param {string} url @returns {Choice} */
function named(url) {
  const { href, pathname } = new URL(url, document.baseURI);
  const offered = choices.find((choice) => choice.url && new URL(choice.url, document.baseURI).href === href);
  const name = decodeURIComponent(pathname.split("/").pop() ?? "") || href;
  return offered ?? { key: name, name, group: "From this page's address", size: 0, quantisation: "", url: href };
}

async function start() {
  placeIcons();
  themeButton();
  document.getElementById("bench")?.append(view.element);
  select.addEventListener("change", () => view.clear());
  listenToFiles("bench-file", ([file]) => {
    const choice = fromFiles([file]);
    choices = unique([...choices, choice]);
    fill(choice);
    view.clear();
  });
  view.able("Looking for models…");
  const able = await supported();
  reason = able.ok ? "" : able.reason;
  choices = await offeredModels();
  const asked = address.get("model");
  const choice = asked ? named(asked) : undefined;
  if (choice && !choices.includes(choice)) choices = unique([choice, ...choices]);
  fill(choice);
  if ((address.get("autorun") ?? (asked ? "1" : "0")) !== "0") await view.run();
}

hideToken();
await start();
