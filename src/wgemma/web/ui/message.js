/**
 * One message on the page: an article with nothing but its content, and the buttons below.
 *
 * @typedef {import("./store.js").Message} Message
 * @typedef {{regenerate: (m: Message) => void, edit: (m: Message, text: string) => void,
 *   show: (m: Message) => void, answerCalls: (m: Message, results: {name: string, content: string}[]) => void,
 *   medium: (id: string) => Promise<string | undefined>}} Deeds
 */

import { h, icon, iconButton } from "./dom.js";
import { duration } from "./format.js";
import { copyText, MarkdownView } from "./markdown_view.js";
import { toolCards } from "./tool_cards.js";

/** Why an answer ended, if it is not obvious. */
const ENDINGS = new Map([
  ["cancelled", "Stopped."],
  ["length", "The answer reached its length limit or the end of the context."],
  ["interrupted", "The page was closed during this answer."],
]);

export class MessageView {
  /**
   * @param {Message} message
   * @param {{versions: Message[], results?: {name: string, content: string}[], last: boolean}} place
   * @param {Deeds} deeds
   */
  constructor(message, place, deeds) {
    this.message = message;
    this.deeds = deeds;
    this.results = place.results; // of its tool calls
    const mine = message.role === "user";
    const label = mine ? "You" : (message.model ?? "Model");
    this.article = h("article", {
      class: "message",
      "aria-label": label,
      "data-testid": mine ? "message-user" : "message-model",
    });
    this.below = h("div", { class: "below" });
    this.element = h("div", { class: `turn ${mine ? "mine" : "model"}` }, this.article, this.below);
    if (mine) this.#drawMine();
    else this.#drawModel();
    this.place(place);
  }

  /** Updates the buttons when other messages come and go. @param {{versions: Message[], last: boolean}} place */
  place({ versions, last }) {
    this.element.classList.toggle("last", last);
    this.versions = versions;
    this.#drawBelow();
  }

  // -- content

  #drawMine() {
    const { message } = this;
    if (message.attachments?.length) this.article.append(this.#media(message.attachments));
    if (message.content) this.article.append(h("p", { class: "said" }, message.content));
  }

  /** @param {import("./store.js").Attachment[]} attachments */
  #media(attachments) {
    const list = h("div", { class: "media" });
    for (const { id, kind, name } of attachments) {
      const shown =
        kind === "image" ? h("img", { alt: name, title: name }) : h("audio", { controls: true, "aria-label": name });
      list.append(shown);
      this.deeds.medium(id).then((address) => {
        if (address) shown.src = address;
        else shown.replaceWith(h("span", { class: "gone" }, `${name} is gone`));
      });
    }
    return list;
  }

  #drawModel() {
    const { message } = this;
    this.thinking = null;
    this.body = h("div", { class: "markdown" });
    this.markdown = new MarkdownView(this.body);
    this.article.append(this.body);
    if (message.thinking) this.#think(message.thinking, false);
    this.markdown.show(message.content);
    if (message.calls?.length) this.#cards();
  }

  /** @param {string} text @param {boolean} open */
  #think(text, open) {
    if (!this.thinking) {
      const body = h("div", { class: "markdown" });
      this.thought = new MarkdownView(body);
      this.summary = h("summary", {}, icon("think"), h("span", {}, open ? "Thinking…" : this.#thoughtLabel()));
      this.thinking = h("details", { class: "thinking", "data-testid": "thinking", open }, this.summary, body);
      this.summary.addEventListener("click", () => (this.chosen = true)); // opened or closed by hand: leave it
      this.article.prepend(this.thinking);
    }
    if (open) this.thought?.write(text);
    else this.thought?.show(text);
  }

  #thoughtLabel() {
    return this.message.thought ? `Thought for ${duration(this.message.thought)}` : "Thoughts";
  }

  #endThought() {
    if (!this.thinking || this.thoughtOver) return;
    this.thoughtOver = true;
    this.thought?.end();
    this.summary?.lastElementChild?.replaceChildren(this.#thoughtLabel());
    if (!this.chosen) this.thinking.open = false;
  }

  #cards() {
    this.cards?.remove();
    const { message, deeds } = this;
    this.cards = toolCards(message.calls ?? [], this.results, (given) => deeds.answerCalls(message, given));
    this.article.append(this.cards);
  }

  // -- streaming

  begin() {
    this.article.setAttribute("aria-busy", "true");
    this.element.classList.add("growing");
  }

  /** @param {{kind: string, text: string}} part already added to the message */
  grow(part) {
    if (part.kind === "thinking") this.#think(part.text, true);
    else if (part.kind === "content" && part.text) {
      this.#endThought();
      this.markdown?.write(part.text);
    } else if (part.kind === "tool_call") this.#endThought();
    if (part.text) this.element.classList.add("begun");
  }

  end() {
    this.#endThought();
    this.markdown?.end();
    this.article.removeAttribute("aria-busy");
    this.element.classList.remove("growing");
    if (this.message.calls?.length) this.#cards();
    this.#drawBelow();
  }

  // -- below it

  #drawBelow() {
    const { message } = this;
    const growing = message.role === "assistant" && !message.finish;
    this.below.replaceChildren();
    if (growing) return;
    const note = message.role === "assistant" ? this.#note() : null;
    if (note) this.below.append(note);
    const { dropped, newlyDropped } = message.stats ?? {};
    if (newlyDropped) {
      const which = dropped === 1 ? "oldest message" : `${dropped} oldest messages`;
      const shift = `The context is full: the model no longer sees the ${which}.`;
      this.below.append(h("p", { class: "note", "data-testid": "message-shift" }, shift));
    }
    const actions = h("div", { class: "actions" });
    if ((this.versions?.length ?? 0) > 1) actions.append(this.#versionSwitch());
    const copy = iconButton("copy", "Copy", { "data-testid": "copy" });
    copy.addEventListener("click", () => copyText(message.content, copy));
    if (message.content) actions.append(copy);
    if (message.role === "user")
      actions.append(iconButton("edit", "Edit and send again", { "data-testid": "edit", onclick: () => this.edit() }));
    else
      actions.append(
        iconButton("redo", "Answer again", {
          "data-testid": "regenerate",
          onclick: () => this.deeds.regenerate(message),
        }),
      );
    this.below.append(actions);
  }

  #note() {
    const { finish, error, content, calls, thinking } = this.message;
    if (error) return h("p", { class: "note error", role: "alert", "data-testid": "message-error" }, error);
    const ending = ENDINGS.get(finish ?? "");
    if (ending) return h("p", { class: "note", "data-testid": "message-note" }, ending);
    if (content || calls?.length) return null;
    return h("p", { class: "note" }, thinking ? "The model thought, but said nothing." : "The model said nothing.");
  }

  #versionSwitch() {
    const all = this.versions ?? [];
    const at = all.indexOf(this.message);
    const step = (/** @type {number} */ by, /** @type {"left"|"right"} */ drawing, /** @type {string} */ label) =>
      iconButton(drawing, label, { disabled: !all[at + by], onclick: () => this.deeds.show(all[at + by]) });
    return h(
      "span",
      { class: "versions", role: "group", "aria-label": "Versions", "data-testid": "versions" },
      step(-1, "left", "Earlier version"),
      h("span", {}, `${at + 1}/${all.length}`),
      step(1, "right", "Later version"),
    );
  }

  // -- editing

  edit() {
    const { message } = this;
    const text = h("textarea", { "aria-label": "Edit the message", "data-testid": "edit-text", rows: "3" });
    text.value = message.content;
    const back = () => {
      form.replaceWith(this.article);
      this.#drawBelow();
      /** @type {HTMLElement | null} */ (this.below.querySelector("[data-testid=edit]"))?.focus();
    };
    const send = () => {
      if (text.value.trim() || message.attachments?.length) this.deeds.edit(message, text.value);
    };
    const form = h(
      "form",
      { class: "editor", onsubmit: (/** @type {Event} */ event) => (event.preventDefault(), send()) },
      text,
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", "data-testid": "edit-cancel", onclick: back }, "Cancel"),
        h("button", { type: "submit", class: "primary", "data-testid": "edit-send" }, "Send"),
      ),
    );
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.article.replaceWith(form);
    this.below.replaceChildren();
    text.focus();
    text.setSelectionRange(text.value.length, text.value.length);
  }
}
