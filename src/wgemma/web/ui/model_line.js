/** The line below the bar: the chosen model and whether it fits, loading progress, or why loading failed. */

import { h } from "./dom.js";
import { bytes, duration } from "./format.js";
import { explained } from "./errors.js";
import { facts, fit } from "./models.js";

/** Names of the stages. @type {Map<string, string>} */
const STAGES = new Map([
  ["start", "Starting Python"],
  ["download", "Downloading"],
  ["check", "Checking the GPU"],
  ["load", "Loading onto the GPU"],
  ["ready", "Ready"],
]);

export class ModelLine {
  /** @param {{cancel: () => void, deed: (name: string) => void}} deeds */
  constructor(deeds) {
    this.place = /** @type {HTMLElement} */ (document.getElementById("model-line"));
    this.deeds = deeds;
    this.bar = h("progress", { max: "1", "aria-label": "Loading" });
    this.stage = h("strong");
    this.detail = h("span", { class: "detail", "data-testid": "load-progress" });
    const cancel = h("button", { type: "button", "data-testid": "cancel-load", onclick: deeds.cancel }, "Cancel");
    this.loading = h("div", { class: "loading" }, h("p", {}, this.stage, this.detail, cancel), this.bar);
  }

  /** @param {import("./engine.js").Engine} engine @param {import("./models.js").Entry | null} chosen */
  show(engine, chosen) {
    const loading = engine.state === "loading";
    const other = chosen && !engine.holds(chosen);
    this.place.hidden =
      !loading && !engine.error && !(other && engine.state !== "starting" && engine.state !== "unsupported");
    if (loading) this.#progress(engine);
    else if (engine.error) this.#failed(engine.error);
    else if (chosen) this.#facts(chosen);
  }

  /** @param {import("./engine.js").Engine} engine */
  #progress({ progress, entry }) {
    if (!progress || !entry) return;
    if (this.loading.parentElement !== this.place) this.place.replaceChildren(this.loading);
    const { stage, loaded, total, text, rate } = progress;
    this.stage.textContent = STAGES.get(stage) ?? text;
    const told = [total > 1 && `${bytes(loaded)} of ${bytes(total)}`];
    if (rate > 1e5 && total > loaded) told.push(`${bytes(rate)}/s`, `${duration((total - loaded) / rate)} left`);
    this.detail.textContent = told.filter(Boolean).join(" · ");
    if (total) this.bar.value = loaded / total;
    else this.bar.removeAttribute("value");
  }

  /** @param {unknown} error */
  #failed(error) {
    const { text, next } = explained(error);
    const line = h("p", { class: "failed", role: "alert", "data-testid": "load-error" }, h("span", {}, text));
    if (next) line.append(h("button", { type: "button", onclick: () => this.deeds.deed(next.deed) }, next.label));
    this.place.replaceChildren(line);
  }

  /** @param {import("./models.js").Entry} entry */
  #facts(entry) {
    const { level, text } = fit(entry.size, navigator.deviceMemory);
    const hint = h("span", { class: `fit ${level}`, "data-testid": "fit" }, text);
    this.place.replaceChildren(h("p", { class: "facts" }, h("span", {}, facts(entry).join(" · ")), hint));
  }
}
