/**
 * The list of adapters below the bar: each with a switch, a scale and a button to remove it.
 *
 * They belong to the loaded model, which may come with some of its own.
 *
 * @typedef {{name: string, scale: number, on: boolean}} Adapter
 */

import { announce, h, iconButton, part } from "./dom.js";
import { LEARNING } from "./engine.js";
import { explained } from "./errors.js";
import { listenToFiles } from "./input.js";
import { toast } from "./notices.js";

const LEAST = -10;
const MOST = 10;

export class Adapters extends EventTarget {
  /** @type {Adapter[]} */ list = [];
  /** @type {import("../wgemma").Model | null} the model they belong to */ #model = null;
  #place = part("adapter-list");

  /** @param {import("./engine.js").Engine} engine */
  constructor(engine) {
    super();
    this.engine = engine;
    engine.addEventListener("change", () => this.#follow());
    listenToFiles("adapter-file", (files) => this.open(files));
  }

  #follow() {
    if (this.engine.model === this.#model) return;
    this.#model = this.engine.model;
    const own = Object.entries(this.#model?.adapters ?? {});
    this.list = own.map(([name, scale]) => ({ name, scale, on: true }));
    this.#changed();
  }

  /** The options of a chat. */
  get choice() {
    if (!this.list.length) return {};
    return { adapter: Object.fromEntries(this.list.filter(({ on }) => on).map(({ name, scale }) => [name, scale])) };
  }

  /** @param {string} name */
  find(name) {
    return this.list.find((adapter) => adapter.name === name);
  }

  /** Opens files: a GGUF, or PEFT's two. @param {File[]} files */
  async open(files) {
    const ggufs = files.filter((file) => /\.gguf$/i.test(file.name));
    const peft = files.filter((file) => /\.(json|safetensors)$/i.test(file.name));
    if (peft.length === 1) {
      toast("A PEFT adapter is two files: pick adapter_config.json and adapter_model.safetensors together.");
    }
    for (const file of ggufs) await this.add(file);
    if (peft.length === 2) await this.add([peft[0], peft[1]]);
  }

  /**
   * Loads an adapter and turns it on; returns whether that worked.
   * @param {File | [File, File]} source @param {string} [name]
   */
  async add(source, name) {
    const { model } = this.engine;
    if (!model || this.engine.state === "training") {
      toast(model ? LEARNING : "Load the adapter's model first.");
      return false;
    }
    try {
      const called = await model.loadAdapter(source, name ? { name } : {});
      if (this.engine.model !== model) return false;
      this.list = [...this.list.filter((adapter) => adapter.name !== called), { name: called, scale: 1, on: true }];
      this.#changed();
      announce(`The adapter ${called} is on.`);
      return true;
    } catch (error) {
      toast(explained(error).text);
      return false;
    }
  }

  /** @param {string} name @param {Partial<Adapter>} change */
  set(name, change) {
    const adapter = this.find(name);
    if (!adapter) return;
    Object.assign(adapter, change);
    this.#changed(false);
  }

  /** @param {string} name */
  async remove(name) {
    if (this.engine.state === "training") {
      toast(LEARNING);
      return;
    }
    try {
      await this.engine.model?.unloadAdapter(name);
    } catch (error) {
      toast(explained(error).text);
      return;
    }
    this.list = this.list.filter((adapter) => adapter.name !== name);
    this.#changed();
    announce(`The adapter ${name} is removed.`);
  }

  /** @param {boolean} [anew] rebuild the list */
  #changed(anew = true) {
    if (anew) {
      this.#place.hidden = !this.list.length;
      this.#place.replaceChildren(...this.list.map((adapter) => this.#item(adapter)));
    }
    for (const { name, on } of this.list) {
      const items = /** @type {HTMLElement[]} */ ([...this.#place.children]);
      const item = items.find((other) => other.dataset.name === name);
      item?.classList.toggle("off", !on);
      /** @type {HTMLInputElement | null | undefined} */
      const box = item?.querySelector("[role=switch]");
      if (box) box.checked = on;
    }
    this.dispatchEvent(new Event("change"));
  }

  /** @param {Adapter} adapter */
  #item({ name, scale }) {
    const box = h("input", {
      type: "checkbox",
      role: "switch",
      "aria-label": `Use the adapter ${name}`,
      "data-testid": "adapter-on",
    });
    box.addEventListener("change", () => this.set(name, { on: box.checked }));
    const amount = h("input", {
      type: "number",
      min: LEAST,
      max: MOST,
      step: 0.1,
      value: scale,
      "aria-label": `Scale of ${name}`,
      title: "Strength; 1 is as trained",
      "data-testid": "adapter-scale",
    });
    amount.addEventListener("input", () => {
      const good = amount.value !== "" && Math.abs(Number(amount.value)) <= MOST;
      amount.setAttribute("aria-invalid", String(!good));
      if (good) this.set(name, { scale: Number(amount.value) });
    });
    return h(
      "li",
      { "data-name": name, "data-testid": "adapter" },
      h("label", { class: "switch" }, box, h("span", { class: "name", title: name }, name)),
      h("label", { class: "scale" }, h("span", { "aria-hidden": "true" }, "×"), amount),
      iconButton("close", `Remove ${name}`, { onclick: () => this.remove(name), "data-testid": "adapter-remove" }),
    );
  }
}
