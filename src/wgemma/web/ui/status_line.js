/** The status line: what the model is doing, and statistics of the last answer. */

import { announce, h, part } from "./dom.js";
import { duration, whole } from "./format.js";

/** @typedef {import("./engine.js").Engine} Engine */

export class StatusLine {
  /** @type {import("./models.js").Entry | null} the last model announced as ready */ #announced = null;
  #place = /** @type {HTMLElement} */ (document.getElementById("state"));

  /** @param {Engine} engine @param {boolean} answering true from the question on, also while the model loads */
  show(engine, answering) {
    const state = engine.state === "ready" && answering ? "answering" : engine.state;
    const words = wordsFor(state, engine);
    const status = part("status");
    if (status.textContent !== words) status.textContent = words;
    const look = state === "empty" && engine.error ? "failed" : state;
    if (this.#place.dataset.state === look) return;
    this.#place.dataset.state = look;
    if (state === "loading") announce(`Loading ${engine.entry?.name}.`);
    if (state === "empty") this.#announced = null;
    if (state !== "ready" || this.#announced === engine.entry) return;
    this.#announced = engine.entry;
    announce(`${engine.entry?.name} is ready.`);
  }

  /** @param {import("./store.js").Stats} [stats] */
  count({ tokensPerSecond, firstToken, prompt, reused, generated, context } = {}) {
    const told = [];
    if (tokensPerSecond) told.push(`${tokensPerSecond.toFixed(tokensPerSecond < 10 ? 1 : 0)} tokens/s`);
    if (firstToken !== undefined) told.push(`first after ${duration(firstToken)}`);
    /** @type {HTMLElement | string} */
    let parts = "";
    if (prompt !== undefined && generated !== undefined) {
      told.push(`context ${whole(prompt + generated)}${context ? ` of ${whole(context)}` : ""}`);
      const shares = `prompt ${whole(prompt)}, ${whole(reused ?? 0)} reused, ${whole(generated)} generated`;
      parts = h("span", { class: "wide-only" }, ` (${shares})`);
    }
    part("stats").replaceChildren(told.join(" · "), parts);
  }
}

/** @param {import("./engine.js").State} state @param {Engine} engine */
function wordsFor(state, { error, progress }) {
  const share = progress?.total ? ` ${Math.floor((100 * progress.loaded) / progress.total)} %` : "…";
  if (state === "loading") return `loading${share}`;
  if (state === "empty") return error ? "failed" : "no model loaded";
  return state === "unsupported" ? "no WebGPU" : state;
}
