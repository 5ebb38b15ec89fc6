/**
 * The benchmark on a page: start button, progress, result and copy buttons. Measuring is up to the caller.
 *
 * @typedef {import("../bench").Result} Result
 * @typedef {{text: string, share: number | null}} Progress
 */

import { facts, modelFacts, moved, rate, report, time } from "../bench.js";
import { h, icon } from "./dom.js";
import { explained, isAbort } from "./errors.js";
import { whole } from "./format.js";
import { copyText } from "./markdown_view.js";

const WHAT =
  "Decodes 200 tokens and reads prompts of 512 and 2048. Takes a few seconds on a GPU, about a minute without one.";

export class BenchView {
  /** @type {AbortController | null} */ #stop = null;
  #reason = ""; // why it cannot start
  /** @type {Result | null} */ #result = null;

  /**
   * @param {(tell: (progress: Progress) => void, signal: AbortSignal) => Promise<Result>} measure
   * @param {(result: Result | null) => void} [ended] null if there is no result
   */
  constructor(measure, ended = () => {}) {
    this.measure = measure;
    this.ended = ended;
    this.place = h("div", { class: "result", "data-testid": "bench-result", hidden: true });
    this.trouble = h("p", { class: "note error", role: "alert", "data-testid": "bench-error", hidden: true });
    this.told = h("p", { class: "unseen", role: "status" });
    this.text = h("span", { "data-testid": "bench-progress" });
    this.bar = h("progress", { max: "1", "aria-label": "Benchmark" });
    const cancel = { type: "button", "data-testid": "bench-cancel", onclick: () => this.stop() };
    this.progress = h(
      "div",
      { class: "progress", hidden: true },
      h("p", {}, this.text, h("button", cancel, "Cancel")),
      this.bar,
    );
    this.start = h("button", { type: "button", "data-testid": "bench-run", onclick: () => this.run() });
    this.hint = h("small", { "data-testid": "bench-hint" });
    this.copies = [
      this.#copy("Copy", "bench-copy", "primary", report),
      this.#copy("Copy as JSON", "bench-copy-json", "", json),
    ];
    this.row = h("div", { class: "row" }, ...this.copies, this.start, this.hint);
    this.element = h("div", { class: "bench" }, this.place, this.progress, this.trouble, this.row, this.told);
    this.#draw();
  }

  /** @param {string} label @param {string} name @param {string} look @param {(result: Result) => string} text */
  #copy(label, name, look, text) {
    const button = h("button", { type: "button", class: look, "data-testid": name }, icon("copy"), label);
    button.addEventListener("click", () => this.#result && copyText(text(this.#result), button));
    return button;
  }

  /** Enables or disables the start button. @param {string} reason why it cannot start; "" if it can */
  able(reason) {
    this.#reason = reason;
    this.#draw();
  }

  /** Clears the result, because the model changed. */
  clear() {
    this.#result = null;
    this.trouble.hidden = true;
    this.#draw();
  }

  get running() {
    return this.#stop !== null;
  }

  stop() {
    this.#stop?.abort();
  }

  /** Runs the benchmark and shows the result; does nothing if it is running or cannot start. */
  async run() {
    if (this.#stop || this.#reason) return;
    const { signal } = (this.#stop = new AbortController());
    this.#result = null;
    this.trouble.hidden = true;
    this.#tell({ text: "Starting", share: null });
    this.#draw();
    try {
      this.#result = await this.measure((progress) => this.#tell(progress), signal);
      this.place.replaceChildren(...drawn(this.#result));
      this.told.textContent = `Done: ${rate(this.#result.decode.tokensPerSecond)} tokens per second.`;
    } catch (error) {
      const text = isAbort(error) ? "Stopped." : explained(error).text;
      this.trouble.textContent = text;
      this.trouble.classList.toggle("error", !isAbort(error));
      this.trouble.hidden = false;
    }
    this.#stop = null;
    this.#draw();
    this.element.scrollIntoView({ block: "nearest" });
    this.ended(this.#result);
  }

  /** @param {Progress} progress */
  #tell({ text, share }) {
    if (this.text.textContent !== text) this.text.textContent = text;
    if (share === null) this.bar.removeAttribute("value");
    else this.bar.value = share;
  }

  #draw() {
    const { running } = this;
    const done = this.#result !== null;
    this.progress.hidden = !running;
    this.place.hidden = !done;
    this.row.hidden = running;
    for (const button of this.copies) button.hidden = !done;
    this.start.textContent = done ? "Run again" : "Run the benchmark";
    this.start.classList.toggle("primary", !done);
    this.start.disabled = this.#reason !== "";
    this.hint.textContent = this.#reason || (done ? "" : WHAT);
  }
}

/** @param {Result} result */
const json = (result) =>
  JSON.stringify(result, (_, value) => (typeof value === "number" ? Number(value.toFixed(1)) : value), 2);

/** @param {Result} result */
function drawn(result) {
  const { model, loading, decode, prompts, notes } = result;
  const longest = Math.max(1, ...loading.stages.map((stage) => stage.ms));
  return [
    h("header", {}, h("strong", {}, model.name), h("span", {}, modelFacts(result))),
    h(
      "dl",
      { class: "rates" },
      rateOf("Decode", decode.tokensPerSecond, `${whole(decode.tokens)} tokens`),
      ...prompts.map(({ tokens, tokensPerSecond, ms }) =>
        rateOf("Prompt", tokensPerSecond, `${whole(tokens)} tokens in ${time(ms)}`),
      ),
    ),
    ...(notes.length ? [h("p", { class: "muted" }, notes.join(" "))] : []),
    h("h3", {}, "Loading", h("span", {}, time(loading.total))),
    h("ol", { class: "stages" }, ...loading.stages.map((stage) => stageLine(stage, longest))),
    h("h3", {}, "Details"),
    h("dl", { class: "facts" }, ...facts(result).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h(
      "details",
      {},
      h("summary", {}, "As text"),
      h("pre", { tabindex: "0", "data-testid": "bench-text" }, report(result)),
    ),
  ];
}

/** @param {string} name @param {number} tokensPerSecond @param {string} detail */
function rateOf(name, tokensPerSecond, detail) {
  const figure = tokensPerSecond < 1000 ? rate(tokensPerSecond) : whole(tokensPerSecond);
  return h("div", {}, h("dt", {}, name), h("dd", {}, h("b", {}, figure), " tokens/s"), h("dd", {}, detail));
}

/** @param {import("../bench").Stage} stage @param {number} longest milliseconds */
function stageLine(stage, longest) {
  const bar = h("i", { "aria-hidden": "true" });
  bar.style.width = `${(100 * stage.ms) / longest}%`;
  return h(
    "li",
    {},
    h("span", {}, stage.name),
    h("span", { class: "track" }, bar),
    h("span", {}, time(stage.ms)),
    h("small", {}, moved(stage).join(", ")),
  );
}
