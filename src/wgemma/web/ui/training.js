/** A training on the page: figures and loss curve while it runs, then what to do with the adapter. */

import { announce, h, icon } from "./dom.js";
import { bytes, duration, plural, whole } from "./format.js";
import { LossCurve } from "./loss_curve.js";

const TELL_EVERY = 20_000; // milliseconds between announcements

export class Training {
  /** @type {string[]} object URLs of the downloads */ #addresses = [];
  #told = 0;

  /** @param {{use: () => void, chat: () => void}} deeds */
  constructor(deeds) {
    this.curve = new LossCurve();
    this.bar = h("progress", { max: "1", "aria-label": "Training" });
    this.figures = {
      loss: figure("Loss", "finetune-loss"),
      step: figure("Step", "finetune-step"),
      speed: figure("Speed", "finetune-speed"),
      left: figure("Time left", "finetune-left"),
      memory: figure("GPU memory", "finetune-memory"),
    };
    this.state = h("h3", { "data-testid": "finetune-state" });
    this.use = h("button", { type: "button", class: "primary", "data-testid": "finetune-use", onclick: deeds.use });
    this.chat = h("button", { type: "button", "data-testid": "finetune-chat", onclick: deeds.chat }, "Go to the chat");
    this.result = h("div", { class: "result", hidden: true, "data-testid": "finetune-result" });
    this.element = h(
      "section",
      { class: "training", "aria-label": "Training", hidden: true },
      this.state,
      this.bar,
      h("dl", { class: "figures" }, ...Object.values(this.figures).map(({ element }) => element)),
      this.curve.element,
      this.result,
    );
  }

  /** @param {number} steps planned */
  begin(steps) {
    this.element.hidden = false;
    this.element.classList.add("running");
    this.result.hidden = true;
    this.state.textContent = "Preparing the GPU…";
    this.bar.hidden = false;
    this.bar.removeAttribute("value");
    for (const { value } of Object.values(this.figures)) value.textContent = "–";
    this.figures.step.value.textContent = `0 of ${whole(steps)}`;
    this.curve.begin(steps);
    this.#told = performance.now();
    announce("The training begins.");
  }

  /** @param {import("../wgemma").TrainingStep} told */
  step(told) {
    const { step, steps, epoch, loss, tokensPerSecond, secondsLeft, memory, validation } = told;
    this.state.textContent = `Training, epoch ${epoch}`;
    this.bar.value = step / steps;
    const { figures } = this;
    figures.loss.value.textContent = shownLoss(loss);
    figures.step.value.textContent = `${whole(step)} of ${whole(steps)}`;
    const speed = tokensPerSecond < 10 ? tokensPerSecond.toFixed(1) : whole(tokensPerSecond);
    figures.speed.value.textContent = `${speed} tokens/s`;
    figures.left.value.textContent = step === steps ? "none" : duration(secondsLeft);
    figures.memory.value.textContent = bytes(memory);
    this.curve.add(told);
    const now = performance.now();
    if (now - this.#told < TELL_EVERY && !validation) return;
    this.#told = now;
    const held = validation ? `, validation loss ${shownLoss(validation)}` : "";
    announce(`Step ${step} of ${steps}, loss ${shownLoss(loss)}${held}.`);
  }

  /** Stopping: the current step is finished first. */
  stopping() {
    this.state.textContent = "Stopping after this step…";
    announce("Stopping after this step.");
  }

  /** @param {import("../wgemma").Trained} trained */
  end(trained) {
    const { losses, stopped, steps, validation } = trained;
    const all = plural(steps, "step");
    const made = stopped ? `Stopped after ${whole(losses.length)} of ${all}` : `Done: ${all}`;
    this.state.textContent = made;
    const held = validation.length ? `; validation ${shownLoss(validation[validation.length - 1][1])}` : "";
    const learnt = `The loss went from ${shownLoss(losses[0])} to ${shownLoss(losses[losses.length - 1])}${held}.`;
    this.#release();
    const { gguf, config, safetensors, card } = trained.adapter;
    const link = (/** @type {Blob} */ file, /** @type {string} */ called, /** @type {string} */ testid) =>
      h("a", { href: this.#address(file), download: called, "data-testid": testid }, called);
    this.result.replaceChildren(
      h("p", {}, learnt),
      h(
        "div",
        { class: "row" },
        this.use,
        this.chat,
        h(
          "a",
          { class: "button", href: this.#address(gguf), download: "adapter.gguf", "data-testid": "finetune-download" },
          icon("download"),
          "Download adapter.gguf",
          h("small", {}, bytes(gguf.size)),
        ),
      ),
      h(
        "p",
        { class: "muted files" },
        "For PEFT and transformers: ",
        link(config, "adapter_config.json", "finetune-download-config"),
        ", ",
        link(safetensors, "adapter_model.safetensors", "finetune-download-safetensors"),
        ", ",
        link(card, "README.md", "finetune-download-card"),
        ". The adapter is not kept in this browser.",
      ),
    );
    this.result.hidden = false;
    announce(`${made}. ${learnt}`);
  }

  /** Training has ended, for whatever reason. */
  over() {
    this.element.classList.remove("running");
    this.bar.hidden = true;
    this.figures.left.value.textContent = "–";
    if (this.result.hidden) this.element.hidden = !this.curve.losses.length;
  }

  /** @param {boolean} used whether the adapter is on */
  showUse(used) {
    this.use.replaceChildren(icon(used ? "check" : "plus"), used ? "In use" : "Use it now");
    this.use.classList.toggle("primary", !used);
    this.chat.hidden = !used;
    this.use.setAttribute("aria-pressed", String(used));
    this.use.title = used ? "Stop using it" : "Use it for the next answers";
  }

  /** @param {Blob} file */
  #address(file) {
    const address = URL.createObjectURL(file);
    this.#addresses.push(address);
    return address;
  }

  #release() {
    for (const address of this.#addresses.splice(0)) URL.revokeObjectURL(address);
  }
}

/** @param {string} label @param {string} testid */
function figure(label, testid) {
  const value = h("dd", { "data-testid": testid });
  return { value, element: h("div", {}, h("dt", {}, label), value) };
}

/** @param {number} loss */
const shownLoss = (loss) => (loss >= 100 ? loss.toFixed(1) : loss >= 0.01 ? loss.toFixed(3) : loss.toExponential(1));
