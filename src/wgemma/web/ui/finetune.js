/**
 * The fine-tuning view: a file of examples, settings, start and stop. It replaces the conversation; training goes on
 * while it is closed.
 */

import { announce, h, icon, iconButton, part } from "./dom.js";
import { explained } from "./errors.js";
import { EXAMPLE, FEW_STEPS, MAIN, MORE, NUMBERS, problemOf, SCHEDULES, TARGETS } from "./finetune_settings.js";
import { plural, whole } from "./format.js";
import { listenToFiles } from "./input.js";
import { toast } from "./notices.js";
import { Training } from "./training.js";

const PATIENCE = 400; // milliseconds from the last change until the examples are read again
const SHOWN = 20; // bad lines shown

export class Finetune {
  /** @type {File | null} */ file = null;
  /** @type {AbortController | null} of the running training */ running = null;
  /** @type {Record<string, unknown>} what the user has set */ settings = {};
  /** @type {import("../wgemma").Examined | null} */ #examined = null;
  /** @type {{file: File, name: string} | null} the last adapter trained */ #learnt = null;
  #asked = 0;
  #timer = 0;
  #skips = false;
  #problems = new Set();

  heading = h("h2", { id: "finetune-title" });
  name = h("strong");
  summary = h("div", { class: "summary", "data-testid": "finetune-summary", "aria-live": "polite" });
  bad = h("div", { class: "bad", "data-testid": "finetune-bad", role: "alert" });
  fields = h("fieldset", { class: "settings" });
  trouble = h("p", { class: "note error", role: "alert", "data-testid": "finetune-error", hidden: true });
  start = h("button", { type: "button", class: "primary", "data-testid": "finetune-start" }, "Start");
  stop = h("button", { type: "button", "data-testid": "finetune-stop", hidden: true }, icon("stop"), "Stop");
  hint = h("p", { class: "muted", "data-testid": "finetune-hint" });

  /**
   * @param {import("./engine.js").Engine} engine @param {import("./adapters.js").Adapters} adapters
   * @param {{system: () => string, closed: () => void}} deeds `system`: the system prompt
   */
  constructor(engine, adapters, deeds) {
    this.engine = engine;
    this.adapters = adapters;
    this.deeds = deeds;
    this.place = /** @type {HTMLElement} */ (document.getElementById("finetune"));
    this.opener = part("finetune");
    this.training = new Training({ use: () => this.#use(), chat: () => this.close() });
    this.#fill();
    this.start.addEventListener("click", () => this.begin());
    this.stop.addEventListener("click", () => this.halt());
    this.opener.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    engine.addEventListener("change", () => this.#follow());
    adapters.addEventListener("change", () => this.#drawUse());
    addEventListener("beforeunload", (event) => this.running && event.preventDefault());
  }

  // -- opening and closing

  get isOpen() {
    return !this.place.hidden;
  }

  open() {
    this.#show(true);
    this.#draw();
    this.training.curve.draw();
    this.place.focus();
  }

  close() {
    if (!this.isOpen) return;
    this.#show(false);
    this.deeds.closed();
  }

  /** @param {boolean} on */
  #show(on) {
    this.place.hidden = !on;
    document.querySelector("main")?.classList.toggle("tuning", on);
    this.opener.setAttribute("aria-expanded", String(on));
  }

  // -- building the view

  #fill() {
    const picker = h("input", {
      type: "file",
      accept: ".jsonl,.json,.ndjson,application/json",
      "data-testid": "finetune-file",
      "aria-label": "Choose a file of examples",
    });
    this.fields.append(
      h("legend", { class: "unseen" }, "Settings"),
      h("div", { class: "grid" }, ...Object.keys(MAIN).map((name) => this.#number(name))),
      h(
        "details",
        { "data-testid": "finetune-more" },
        h("summary", {}, "More settings"),
        h("div", { class: "grid" }, ...Object.keys(MORE).map((name) => this.#number(name)), this.#schedule()),
        this.#targets(),
      ),
    );
    this.place.replaceChildren(
      h(
        "header",
        {},
        this.heading,
        iconButton("close", "Back to the chat", { onclick: () => this.close(), "data-testid": "finetune-close" }),
      ),
      h(
        "p",
        { class: "lead" },
        "Teach the model by example. Training runs on your own GPU and makes a small adapter (LoRA) that sits beside the " +
          "model; the examples stay on this computer.",
      ),
      h(
        "div",
        { class: "drop" },
        icon("upload"),
        h("span", {}, this.name, h("small", {}, "one JSON object per line; drop it here or click")),
        picker,
      ),
      this.summary,
      this.bad,
      h(
        "details",
        { class: "formats" },
        h("summary", {}, "File format"),
        h("pre", { tabindex: "0" }, EXAMPLE),
        h(
          "p",
          { class: "muted" },
          "Conversations as messages, prompt and completion, or Alpaca's instruction, input and output. The " +
            "model learns from the answers only.",
        ),
      ),
      this.fields,
      this.trouble,
      h("div", { class: "row" }, this.start, this.stop, this.hint),
      this.training.element,
    );
    listenToFiles("finetune-file", (files) => this.take(files[0]));
  }

  /** @param {string} name */
  #number(name) {
    const { label, hint, own, least, step } = NUMBERS[name];
    const problem = h("small", { class: "problem", id: `problem-tune-${name}`, "aria-live": "polite" });
    const input = h("input", {
      type: "number",
      step: "any",
      min: least,
      inputmode: "decimal",
      placeholder: name === "steps" ? "by epochs" : own,
      "data-testid": `finetune-${name}`,
      "aria-describedby": problem.id,
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault(); // a sensible step, starting from the default
      const from = Number(input.value || input.placeholder) || 0;
      const next = Number((from + (event.key === "ArrowUp" ? step : -step)).toPrecision(6));
      if (problemOf(name, next) === "") input.value = String(next);
      input.dispatchEvent(new Event("input"));
    });
    input.addEventListener("input", () => {
      const empty = input.value === "" && !input.validity.badInput;
      problem.textContent = empty ? "" : problemOf(name, input.value === "" ? NaN : Number(input.value));
      input.setAttribute("aria-invalid", String(problem.textContent !== ""));
      this.#problems[problem.textContent ? "add" : "delete"](name);
      if (!problem.textContent) this.#set(name, empty ? undefined : Number(input.value));
      this.#draw();
    });
    if (name === "seq") this.seq = input;
    return h("label", { class: "field" }, h("span", {}, label), input, h("small", {}, hint), problem);
  }

  #schedule() {
    const select = h("select", { "data-testid": "finetune-schedule" });
    for (const [name, text] of SCHEDULES) select.append(h("option", { value: name }, `${name}: ${text}`));
    select.addEventListener("change", () => this.#set("schedule", select.value));
    return h("label", { class: "field" }, h("span", {}, "Schedule"), select, h("small", {}, "of the learning rate"));
  }

  #targets() {
    const boxes = TARGETS.map(([name, , usual]) => {
      const box = h("input", { type: "checkbox", value: name, "data-testid": `finetune-target-${name}` });
      box.checked = usual;
      return box;
    });
    for (const box of boxes) {
      box.addEventListener("change", () => {
        const chosen = boxes.filter(({ checked }) => checked).map(({ value }) => value);
        this.#problems[chosen.length ? "delete" : "add"]("targets");
        this.#set("targets", chosen);
        this.#draw();
      });
    }
    const labels = TARGETS.map(([, text], i) => h("label", {}, boxes[i], text));
    return h("fieldset", { class: "targets" }, h("legend", {}, "Matrices to train"), ...labels);
  }

  /** @param {string} name @param {unknown} value */
  #set(name, value) {
    this.settings = { ...this.settings, [name]: value };
    this.#examineSoon();
  }

  /** All settings for the engine. @returns {import("../wgemma").TrainingSettings} */
  get given() {
    const own = Object.fromEntries(Object.entries(MAIN).map(([name, field]) => [name, field.own]));
    own.seq = this.#ownSeq;
    const set = Object.fromEntries(Object.entries(this.settings).filter(([, value]) => value !== undefined));
    const system = this.deeds.system();
    return { ...own, ...set, skipBad: this.#skips, ...(system && { system }) };
  }

  /** The default length, at most this model's context. */
  get #ownSeq() {
    return Math.min(MAIN.seq.own, this.engine.info?.context ?? MAIN.seq.own);
  }

  // -- the examples

  /** @param {File | undefined} file */
  take(file) {
    if (!file) return;
    if (this.running) {
      toast("Training is running. Stop it first.");
      return;
    }
    this.file = file;
    this.#skips = false;
    this.#examined = null;
    this.trouble.hidden = true;
    this.#draw();
    this.#examine();
  }

  #examineSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#examine(), PATIENCE);
  }

  /** Reads the examples with the current settings. */
  async #examine() {
    const { file } = this;
    const { model } = this.engine;
    if (!file || this.running || this.#problems.size || !model || this.engine.state !== "ready") return;
    const asked = ++this.#asked;
    if (!this.#examined) this.summary.textContent = "Reading the examples…";
    try {
      const examined = await model.examine(file, { ...this.given, skipBad: true });
      if (asked !== this.#asked) return;
      this.#examined = examined;
      this.trouble.hidden = true;
    } catch (error) {
      if (asked !== this.#asked) return;
      this.#examined = null;
      this.#tell(error);
    }
    this.#draw();
  }

  /** @param {unknown} error */
  #tell(error) {
    this.trouble.textContent = explained(error).text;
    this.trouble.hidden = false;
  }

  // -- the training

  async begin() {
    const { file, engine } = this;
    if (!file || !this.#mayStart) return;
    const name = nameOf(file.name);
    const running = (this.running = new AbortController());
    this.trouble.hidden = true;
    this.training.begin(this.#examined?.steps ?? 0);
    this.#draw();
    this.stop.focus();
    this.stop.parentElement?.scrollIntoView();
    try {
      for await (const told of engine.finetune(file, { ...this.given, signal: running.signal })) {
        if ("adapter" in told) this.#learn(told, name);
        else if (!running.signal.aborted) this.training.step(told);
        this.#drawShare("step" in told ? told.step / told.steps : null);
      }
    } catch (error) {
      this.#tell(error);
    }
    this.running = null;
    this.training.over();
    this.#drawShare(null);
    this.#draw();
  }

  halt() {
    if (!this.running) return;
    this.running.abort();
    this.training.stopping();
    this.#draw();
  }

  /** @param {import("../wgemma").Trained} trained @param {string} name */
  #learn(trained, name) {
    this.#learnt = { file: trained.adapter.gguf, name: this.#freeName(name) };
    this.training.end(trained);
    this.#drawUse();
    if (!this.isOpen) toast("Training has ended.", { label: "Show", act: () => this.open() });
  }

  /** @param {string} name */
  #freeName(name) {
    let free = name;
    for (let i = 2; this.adapters.find(free); i++) free = `${name}-${i}`;
    return free;
  }

  /** Turns the trained adapter on or off in the chat. */
  async #use() {
    if (!this.#learnt) return;
    const { file, name } = this.#learnt;
    const there = this.adapters.find(name);
    if (there) this.adapters.set(name, { on: !there.on });
    else if (!(await this.adapters.add(file, name))) return;
    announce(`${name} is ${this.adapters.find(name)?.on ? "on" : "off"}.`);
  }

  // -- drawing

  #follow() {
    if (this.seq) this.seq.placeholder = String(this.#ownSeq);
    if (this.isOpen) this.#draw();
    if (this.engine.state === "ready" && this.file && !this.#examined && this.trouble.hidden) this.#examineSoon();
  }

  get #mayStart() {
    const bad = this.#examined?.bad.length && !this.#skips;
    return this.engine.state === "ready" && this.#examined && !bad && !this.running && !this.#problems.size;
  }

  #draw() {
    const { engine, file, running } = this;
    this.heading.replaceChildren("Fine-tune ", h("span", {}, engine.entry?.name ?? "a model"));
    this.name.textContent = file?.name ?? "Choose a file of examples";
    this.start.disabled = !this.#mayStart;
    this.start.hidden = running !== null;
    this.stop.hidden = running === null;
    this.stop.disabled = running?.signal.aborted ?? false;
    this.fields.disabled = running !== null;
    this.hint.textContent = this.#advice();
    this.#drawExamined();
  }

  #advice() {
    const { state } = this.engine;
    if (this.running) return this.running.signal.aborted ? "" : "The chat waits until training ends.";
    if (state === "loading" || state === "starting") return "The model is loading.";
    if (state === "unsupported") return this.engine.reason;
    if (state === "empty") return "Load a model first.";
    if (state === "answering") return "The model is answering.";
    if (!this.file) return "Choose a file of examples first.";
    if (this.#examined?.bad.length && !this.#skips) return "Fix the bad lines, or skip them.";
    const steps = this.#examined?.steps ?? 0;
    if (!steps || this.#problems.size) return "";
    const few = steps < FEW_STEPS ? ", which is few: try more epochs or a smaller batch" : "";
    return plural(steps, "step") + few;
  }

  #drawExamined() {
    const found = this.#examined;
    if (!this.file || !found) {
      if (!this.file || this.engine.state !== "ready") this.summary.textContent = "";
      this.#drawBad([]);
      return;
    }
    const facts = [
      plural(found.examples + found.held, "example"),
      `${whole(found.tokens)} tokens, ${whole(found.targets)} of them to learn from`,
      found.held && `${whole(found.held)} held out`,
      found.truncated && `${whole(found.truncated)} truncated to ${this.given.seq} tokens`,
    ];
    const text = facts.filter(Boolean).join(" · ");
    if (this.summary.textContent !== text) this.summary.textContent = text;
    this.#drawBad(found.bad);
  }

  /** @param {{line: number, reason: string}[]} bad */
  #drawBad(bad) {
    const key = JSON.stringify(bad);
    if (this.bad.dataset.key === key) return;
    this.bad.dataset.key = key;
    if (!bad.length) {
      this.bad.replaceChildren();
      return;
    }
    const box = h("input", { type: "checkbox", "data-testid": "finetune-skip" });
    box.addEventListener("change", () => {
      this.#skips = box.checked;
      this.#draw();
    });
    const lines = bad
      .slice(0, SHOWN)
      .map(({ line, reason }) => h("li", {}, h("strong", {}, `line ${line}`), `: ${reason}`));
    if (bad.length > SHOWN) lines.push(h("li", {}, `and ${whole(bad.length - SHOWN)} more`));
    this.bad.replaceChildren(
      h("p", {}, `${plural(bad.length, "bad line")}:`),
      h("ul", {}, ...lines),
      h("label", {}, box, bad.length === 1 ? "Skip it" : "Skip them"),
    );
  }

  #drawUse() {
    if (this.#learnt) this.training.showUse(this.adapters.find(this.#learnt.name)?.on ?? false);
  }

  /** Progress in the sidebar, visible from the chat. @param {number | null} share */
  #drawShare(share) {
    part("finetune-share").textContent = share === null || !this.running ? "" : `${Math.floor(100 * share)} %`;
  }
}

/** "My pirates (2).jsonl" → "my-pirates-2" @param {string} file */
function nameOf(file) {
  const stem = file.replace(/\.[^.]*$/, "").toLowerCase();
  return (
    stem
      .replace(/[^\p{L}\p{N}]+/gu, "-")
      .replace(/^-+|-+$/g, "")
      .slice(0, 60) || "adapter"
  );
}
