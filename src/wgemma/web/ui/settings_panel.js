/**
 * The sheet with the chat's settings, the benchmark, and what this browser stores. Changes apply at once.
 */

import { forget, saved } from "../wgemma.js";
import { BenchView } from "./bench_view.js";
import { h, icon, iconButton } from "./dom.js";
import { bytes } from "./format.js";
import { DEFAULTS, NUMBERS, numberProblem, parseFormat, parseTools } from "./settings.js";

const EXAMPLE = `[{"name": "get_weather", "description": "The weather in a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]`;

const SCHEMA = `{"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
  "required": ["city", "days"]}`;

/** What reads the settings that are JSON. @type {Record<string, ((text: string) => unknown) | undefined>} */
const PARSERS = { tools: parseTools, format: parseFormat };

/** @typedef {import("./settings.js").Settings} Settings */

export class SettingsPanel {
  /**
   * @param {{change: (settings: Settings) => void, context: (tokens: number | null) => void,
   *   bench: BenchView["measure"]}} deeds
   */
  constructor(deeds) {
    this.deeds = deeds;
    this.bench = new BenchView(deeds.bench);
    this.dialog = /** @type {HTMLDialogElement} */ (document.getElementById("settings-panel"));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("close", () => this.bench.stop());
  }

  /**
   * @param {Settings} settings
   * @param {import("./models.js").Entry | null} entry its settings are the placeholders
   * @param {{chosen: number | null, now: number | null}} context
   */
  open(settings, entry, context) {
    this.settings = { ...settings };
    const numbers = Object.keys(NUMBERS).map((name) => this.#number(name, entry?.settings[name]));
    const reset = () => {
      this.deeds.change({ ...DEFAULTS });
      this.open({ ...DEFAULTS }, entry, context);
    };
    this.dialog.replaceChildren(
      h(
        "header",
        {},
        h("h2", { id: "settings-title" }, "Chat settings"),
        iconButton("close", "Close", { onclick: () => this.dialog.close(), "data-testid": "settings-close" }),
      ),
      h(
        "div",
        { class: "fields" },
        this.#area("system", "System prompt", entry?.system || "For example: Answer briefly, and in German.", 4),
        this.#check(),
        h("fieldset", {}, h("legend", {}, "Sampling"), h("div", { class: "grid" }, ...numbers)),
        this.#area("tools", "Tools, as JSON", EXAMPLE, 5),
        this.#area("format", "Answer format, as a JSON schema", SCHEMA, 4),
        h("fieldset", {}, h("legend", {}, "Model"), this.#context(context)),
        h("fieldset", {}, h("legend", {}, "Benchmark"), this.bench.element),
        h("fieldset", {}, h("legend", {}, "Kept in this browser"), this.#storage()),
      ),
      h(
        "footer",
        {},
        h("button", { type: "button", onclick: reset, "data-testid": "settings-reset" }, "Reset to the model's defaults"),
      ),
    );
    if (!this.dialog.open) this.dialog.showModal();
  }

  #changed() {
    if (this.settings) this.deeds.change({ ...this.settings });
  }

  /** @param {"system"|"tools"|"format"} name @param {string} label @param {string} placeholder @param {number} rows */
  #area(name, label, placeholder, rows) {
    const parse = PARSERS[name];
    const problem = h("p", { class: "problem", id: `problem-${name}`, "aria-live": "polite" });
    const area = h("textarea", {
      rows,
      placeholder,
      spellcheck: parse ? "false" : null,
      "data-testid": `setting-${name}`,
      "aria-describedby": problem.id,
      class: parse ? "code" : null,
    });
    area.value = this.settings?.[name] ?? "";
    area.addEventListener("input", () => {
      if (!this.settings) return;
      problem.textContent = parse ? complaint(parse, area.value) : "";
      area.setAttribute("aria-invalid", String(problem.textContent !== ""));
      this.settings[name] = area.value;
      this.#changed();
    });
    if (parse) problem.textContent = complaint(parse, area.value);
    return h("label", { class: "field" }, h("span", {}, label), area, problem);
  }

  #check() {
    const box = h("input", { type: "checkbox", role: "switch", "data-testid": "setting-think" });
    box.checked = this.settings?.think ?? false;
    box.addEventListener("change", () => {
      if (this.settings) this.settings.think = box.checked;
      this.#changed();
    });
    return h(
      "label",
      { class: "switch" },
      h("span", {}, "Think before answering", h("small", {}, "Slower, but better at hard questions")),
      box,
    );
  }

  /** @param {string} name @param {number | undefined} own */
  #number(name, own) {
    const { label, least, most, step, hint } = NUMBERS[name];
    const problem = h("small", { class: "problem", id: `problem-${name}`, "aria-live": "polite" });
    const input = h("input", {
      type: "number",
      step: "any",
      min: least,
      max: most > 1e6 ? null : most,
      inputmode: "decimal",
      placeholder: own ?? NUMBERS[name].own,
      "data-testid": `setting-${name}`,
      "aria-describedby": problem.id,
    });
    const key = /** @type {"temperature"} */ (name);
    input.value = this.settings?.[key]?.toString() ?? "";
    input.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault(); // a sensible step, starting from the model's own value
      const from = Number(input.value || input.placeholder) || 0;
      const next = from + (event.key === "ArrowUp" ? step : -step);
      input.value = String(Number(Math.min(most, Math.max(least, next)).toFixed(4)));
      input.dispatchEvent(new Event("input"));
    });
    input.addEventListener("input", () => {
      const value = input.value === "" ? null : Number(input.value);
      problem.textContent = value === null && !input.validity.badInput ? "" : numberProblem(name, value);
      input.setAttribute("aria-invalid", String(problem.textContent !== ""));
      if (problem.textContent || !this.settings) return;
      this.settings[key] = value;
      this.#changed();
    });
    return h("label", { class: "field" }, h("span", {}, label), input, h("small", {}, hint), problem);
  }

  /** @param {{chosen: number | null, now: number | null}} context */
  #context({ chosen, now }) {
    const input = h("input", {
      type: "number",
      min: 256,
      step: 256,
      placeholder: "as long as fits",
      "data-testid": "setting-context",
    });
    input.value = chosen?.toString() ?? "";
    input.addEventListener("input", () => {
      const value = Number(input.value);
      this.deeds.context(Number.isInteger(value) && value >= 256 ? value : null);
    });
    const hint = now
      ? `in tokens; applies when a model is next loaded, now ${now}`
      : "in tokens; applies when a model is loaded";
    return h("label", { class: "field" }, h("span", {}, "Context"), input, h("small", {}, hint));
  }

  #storage() {
    const list = h("ul", { class: "storage" });
    const fill = async () => {
      /** @type {StorageEstimate} */
      const { usage = 0, quota = 0 } = (await navigator.storage?.estimate().catch(() => ({}))) ?? {};
      const files = await saved().catch(() => []);
      const lasting = await navigator.storage?.persisted().catch(() => false);
      const rows = files.map(({ url, name, size, loaded, whole }) => {
        const remove = iconButton("trash", `Remove ${name}`, {
          onclick: async () => {
            await forget(url);
            fill();
          },
        });
        return h(
          "li",
          {},
          icon("file"),
          h("span", {}, name, h("small", {}, whole ? bytes(size) : `${bytes(loaded)} of ${bytes(size)}`)),
          remove,
        );
      });
      const ask = async () => {
        await navigator.storage.persist();
        fill();
      };
      const total = h(
        "li",
        {},
        h(
          "small",
          {},
          `${bytes(usage)} of ${bytes(quota)} used. `,
          lasting ? "The browser will not delete it on its own." : "The browser may delete it when the disk is full.",
        ),
      );
      if (!lasting && navigator.storage) total.append(h("button", { type: "button", onclick: ask }, "Ask to keep it"));
      list.replaceChildren(...rows, total);
    };
    fill();
    return list;
  }
}

/** What is wrong with a text, or "". @param {(text: string) => unknown} parse @param {string} text */
function complaint(parse, text) {
  try {
    parse(text);
    return "";
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}
