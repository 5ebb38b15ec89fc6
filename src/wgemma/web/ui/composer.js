/**
 * The message box: a growing text field, attachments as chips, send and stop.
 *
 * The draft survives a reload.
 *
 * @typedef {import("./attachments.js").Attached} Attached
 */

import { Addresses, attached } from "./attachments.js";
import { announce, h, icon, iconButton, part } from "./dom.js";
import { clock } from "./format.js";
import { toast } from "./notices.js";
import { remembered } from "./remembered.js";
import { deviceSentence, Recording, takePicture } from "./recorder.js";

const DRAFT = "wgemma.draft";

export class Composer {
  /**
   * @param {{send: (text: string, attachments: Attached[]) => boolean, stop: () => void,
   *   think: (on: boolean) => void}} deeds
   */
  constructor(deeds) {
    this.deeds = deeds;
    this.form = /** @type {HTMLFormElement} */ (document.getElementById("composer"));
    this.chips = /** @type {HTMLElement} */ (document.getElementById("chips"));
    /** @type {HTMLTextAreaElement} */ this.prompt = part("prompt");
    this.sendButton = part("send");
    this.stopButton = part("stop");
    this.thinkButton = part("think");
    /** @type {Attached[]} */ this.attachments = [];
    this.addresses = new Addresses();
    this.abilities = { image: "", audio: "" }; // why not; "" if they can
    /** @type {Recording | null} */ this.recording = null;
    this.#listen();
    this.prompt.value = remembered(DRAFT) ?? "";
    this.#grown();
  }

  #listen() {
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.prompt.addEventListener("input", () => this.#grown());
    this.prompt.addEventListener("keydown", (event) => {
      // On a touch screen, Enter is the only way to start a new line.
      const sends =
        event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches;
      if (!sends) return;
      event.preventDefault();
      this.#send();
    });
    this.prompt.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.attach(files);
    });
    this.form.addEventListener("click", (event) => event.target === this.form && this.prompt.focus());
    this.stopButton.addEventListener("click", () => this.deeds.stop());
    this.thinkButton.addEventListener("click", () => this.deeds.think(this.thinkButton.ariaPressed !== "true"));
    for (const name of /** @type {const} */ (["attach-image", "attach-audio"])) {
      const input = part(name);
      input.addEventListener("click", (event) => {
        if (this.#refused(name === "attach-image" ? "image" : "audio")) event.preventDefault();
      });
      input.addEventListener("change", async () => {
        await this.attach([...(input.files ?? [])]);
        input.value = "";
      });
    }
    part("camera").addEventListener("click", () => this.#picture());
    part("record").addEventListener("click", () => this.#record());
  }

  // -- text

  #grown() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
    this.sendButton.disabled = !this.prompt.value.trim() && !this.attachments.length;
    remembered(DRAFT, this.prompt.value.slice(0, 200_000));
  }

  /** @param {string} text */
  write(text) {
    this.prompt.value = text;
    this.#grown();
    this.prompt.focus();
  }

  #send() {
    if (!this.prompt.value.trim() && !this.attachments.length) return;
    if (!this.deeds.send(this.prompt.value, this.attachments)) return;
    this.attachments = [];
    this.#drawChips();
    this.prompt.value = "";
    this.#grown();
  }

  // -- state

  /** @param {boolean} answering */
  busy(answering) {
    const focused = document.activeElement;
    this.sendButton.hidden = answering;
    this.stopButton.hidden = !answering;
    if (focused === this.sendButton || focused === this.stopButton) this.prompt.focus();
  }

  /** @param {boolean} on */
  thinks(on) {
    this.thinkButton.setAttribute("aria-pressed", String(on));
  }

  /** Why pictures or sounds cannot be sent; "" if they can. @param {{image: string, audio: string}} abilities */
  able(abilities) {
    this.abilities = abilities;
    const labels = { image: "Attach a picture", audio: "Attach a sound" };
    const places = { "attach-image": "image", camera: "image", "attach-audio": "audio", record: "audio" };
    for (const [name, kind] of /** @type {[string, "image"|"audio"][]} */ (Object.entries(places))) {
      const button = part(name);
      const own = { camera: "Take a picture", record: "Record a sound" }[name] ?? labels[kind];
      const label = abilities[kind] || own;
      const shown = /** @type {HTMLElement} */ (button.closest(".file-button") ?? button);
      shown.title = label;
      shown.classList.toggle("cannot", abilities[kind] !== "");
      button.setAttribute("aria-label", label);
    }
  }

  /** @param {"image"|"audio"} kind */
  #refused(kind) {
    if (this.abilities[kind]) toast(this.abilities[kind]);
    return this.abilities[kind] !== "";
  }

  // -- attachments

  /** @param {File[]} files */
  async attach(files) {
    for (const file of files) {
      try {
        const one = await attached(file);
        if (this.#refused(one.kind)) continue;
        this.attachments.push(one);
        announce(`${one.name} is attached.`);
      } catch (error) {
        toast(/** @type {Error} */ (error).message);
      }
    }
    this.#drawChips();
    this.prompt.focus();
  }

  #drawChips() {
    this.chips.replaceChildren(...this.attachments.map((one) => this.#chip(one)));
    if (this.recording) this.chips.append(this.#recordingChip());
    this.chips.hidden = !this.chips.children.length;
    if (!this.attachments.length) this.addresses.release();
    this.#grown();
  }

  /** @param {Attached} one */
  #chip(one) {
    const remove = iconButton("close", `Remove ${one.name}`, {
      onclick: () => {
        this.attachments = this.attachments.filter((other) => other !== one);
        this.#drawChips();
        this.prompt.focus();
      },
    });
    const address = this.addresses.of(one.id, one.blob);
    const preview =
      one.kind === "image"
        ? h("img", { src: address, alt: "" })
        : h("audio", { src: address, controls: true, "aria-label": one.name });
    return h(
      "li",
      { class: `chip ${one.kind}`, "data-testid": "chip" },
      preview,
      h("span", { class: "name" }, one.name),
      remove,
    );
  }

  // -- microphone and camera

  async #picture() {
    if (this.#refused("image")) return;
    try {
      const file = await takePicture(/** @type {HTMLDialogElement} */ (document.getElementById("camera")));
      if (file) await this.attach([file]);
    } catch (error) {
      toast(deviceSentence(error, "camera"));
    }
  }

  async #record() {
    if (this.recording) {
      await this.#finishRecording();
      return;
    }
    if (this.#refused("audio")) return;
    try {
      this.recording = await Recording.start(() => this.#finishRecording());
      announce("Recording.");
      this.#drawChips();
    } catch (error) {
      toast(deviceSentence(error, "microphone"));
    }
  }

  async #finishRecording() {
    const { recording } = this;
    this.recording = null;
    if (recording) await this.attach([await recording.stop()]);
  }

  #recordingChip() {
    const time = h("span", { class: "name" }, "0:00");
    const timer = setInterval(() => {
      if (this.recording && time.isConnected) time.textContent = clock(this.recording.seconds);
      else clearInterval(timer);
    }, 250);
    const drop = () => {
      this.recording?.cancel();
      this.recording = null;
      this.#drawChips();
    };
    return h(
      "li",
      { class: "chip recording", "data-testid": "recording" },
      icon("microphone"),
      time,
      iconButton("check", "Stop and attach the recording", {
        onclick: () => this.#finishRecording(),
        "data-testid": "record-done",
      }),
      iconButton("close", "Discard the recording", { onclick: drop }),
    );
  }
}
