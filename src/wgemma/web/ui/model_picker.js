/**
 * The bar at the top: choosing a model and loading it.
 *
 * @typedef {import("./models.js").Entry} Entry
 */

import { partNames, wholeName } from "../parts.js";
import { announce, h, part } from "./dom.js";
import { bytes } from "./format.js";
import { listenToFiles } from "./input.js";
import { ModelLine } from "./model_line.js";
import { fromFiles, GROUPS, offeredModels, unique } from "./models.js";
import { toast } from "./notices.js";
import { remembered } from "./remembered.js";

const MODEL = "wgemma.model"; // the last one used
const CONTEXT = "wgemma.context"; // the context length that was set

export class ModelPicker {
  /** @type {Entry[]} */ #models = [];
  #select = part("model-select");
  #button = part("load");

  /**
   * @param {import("./engine.js").Engine} engine
   * @param {{stop: () => Promise<void>, settings: () => void}} deeds `stop` ends the current answer
   */
  constructor(engine, deeds) {
    this.engine = engine;
    this.deeds = deeds;
    this.line = new ModelLine({ cancel: () => engine.cancel(), deed: (name) => this.#deed(name) });
    this.#button.addEventListener("click", () => this.#loadChosen());
    this.#select.addEventListener("change", () => {
      remembered(MODEL, this.chosen?.key ?? null);
      engine.forgive();
    });
    listenToFiles("pick-file", (files) => this.open(files));
  }

  /** Fetches the list of models. */
  async list() {
    this.#models = await offeredModels();
    this.#fill(remembered(MODEL) ?? "");
  }

  /** @param {string} chosen */
  #fill(chosen) {
    const groups = GROUPS.map((label) => {
      const members = this.#models.filter((entry) => entry.group === label);
      return members.length ? h("optgroup", { label }, ...members.map(option)) : "";
    });
    this.#select.replaceChildren(...groups);
    if (!this.#models.length) this.#select.append(h("option", { value: "" }, "Open a .gguf file →"));
    if (this.#models.some((entry) => entry.key === chosen)) this.#select.value = chosen;
  }

  /** @returns {Entry | null} the one in the bar, which answers the next message */
  get chosen() {
    return this.#models.find((entry) => entry.key === this.#select.value) ?? this.engine.entry;
  }

  /** Context length for the next load. */
  get context() {
    return Number(remembered(CONTEXT)) || null;
  }

  set context(tokens) {
    remembered(CONTEXT, tokens === null ? null : String(tokens));
  }

  show() {
    const { engine, chosen } = this;
    this.line.show(engine, chosen);
    const loaded =
      chosen !== null && engine.entry === chosen && ["ready", "answering", "training"].includes(engine.state);
    const waiting = !loaded && chosen !== null && !["loading", "unsupported"].includes(engine.state);
    this.#button.textContent = loaded ? "Loaded" : "Load";
    this.#button.classList.toggle("loaded", loaded);
    this.#button.classList.toggle("primary", waiting);
  }

  /** Why pictures and sounds cannot be sent; "" if they can, or if it is not known yet. */
  get abilities() {
    const { chosen } = this;
    const info = chosen === this.engine.entry ? this.engine.info : null;
    const known = chosen !== null && chosen.capabilities.length > 0;
    const sees = info ? info.sees : !known || chosen.capabilities.includes("vision");
    const hears = info ? info.hears : !known || chosen.capabilities.includes("audio");
    const name = chosen?.name ?? "This model";
    return { image: sees ? "" : `${name} cannot see pictures.`, audio: hears ? "" : `${name} cannot hear sounds.` };
  }

  // -- loading

  #loadChosen() {
    const { chosen, engine } = this;
    if (!chosen) toast("There is no model to load. Open a .gguf file with the button next to this one.");
    else if (engine.state !== "loading" && engine.holds(chosen)) announce(`${chosen.name} is already loaded.`);
    else this.load(chosen);
  }

  /**
   * Loads a model on the user's request; stops an answer by another one.
   * @param {Entry} entry @param {{save?: boolean}} [how]
   */
  async load(entry, how) {
    if (this.engine.state === "unsupported") toast(this.engine.reason);
    if (!this.engine.holds(entry)) await this.deeds.stop();
    await this.ready(entry, how).catch(() => {}); // the line shows why
  }

  /** The model; loads it if necessary. @param {Entry} entry @param {{save?: boolean}} [how] */
  ready(entry, how) {
    const { context } = this;
    return this.engine.load(entry, { ...how, ...(context && { context }) });
  }

  /**
   * Opens a model's file or all of its parts; vision and audio may be in another, which llama.cpp calls mmproj.
   * @param {File[]} files
   */
  open(files) {
    const projector = files.length > 1 ? files.find((file) => /mmproj/i.test(file.name)) : undefined;
    const first = files.find((other) => other !== projector);
    if (!first) return;
    const parts = files.filter((other) => other !== projector && wholeName(other.name) === wholeName(first.name));
    const entry = fromFiles(partNames(first.name).length > 1 ? parts : [first], projector);
    this.#models = unique([...this.#models.filter((other) => !(other.files && other.name === entry.name)), entry]);
    this.#fill(entry.key);
    this.load(entry);
  }

  /** Does what an error's button offers. @param {string} name */
  #deed(name) {
    if (name === "settings") this.deeds.settings();
    else if (name === "unkept" && this.chosen) this.load(this.chosen, { save: false });
    else this.#loadChosen();
  }
}

/** @param {Entry} entry */
function option({ key, name, size, quantisation }) {
  return h("option", { value: key }, [name, size && bytes(size), quantisation].filter(Boolean).join("  ·  "));
}
