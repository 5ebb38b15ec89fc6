/**
 * The messages of the open chat, and scrolling.
 *
 * At the end, the view follows a growing answer; after scrolling up it stays put and offers a button back.
 *
 * @typedef {import("./store.js").Message} Message
 */

import { MessageView } from "./message.js";

const NEAR = 8; // pixels from the end that count as the end
const AWAY = 120; // pixels from the end that bring up the button

export class Conversation {
  /** @param {import("./message.js").Deeds} deeds */
  constructor(deeds) {
    this.deeds = deeds;
    this.thread = /** @type {HTMLElement} */ (document.getElementById("thread"));
    this.scroller = /** @type {HTMLElement} */ (document.getElementById("scroller"));
    this.jump = /** @type {HTMLElement} */ (document.getElementById("jump"));
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    this.following = true;
    this.top = 0;
    this.scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    this.jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.following && this.toEnd()).observe(this.thread);
  }

  /**
   * Shows a branch; messages already on the page are reused.
   * @param {Message[]} branch @param {import("./thread.js").Tree} tree
   */
  show(branch, tree) {
    const before = this.views;
    this.views = new Map();
    const last = branch.findLast((message) => message.role !== "tool");
    for (const [i, message] of branch.entries()) {
      if (message.role === "tool") continue;
      const place = { versions: tree.versions(message), results: branch[i + 1]?.results, last: message === last };
      let view = before.get(message.id);
      if (view && view.results === place.results) view.place(place);
      else view = new MessageView(message, place, this.deeds);
      this.views.set(message.id, view);
    }
    this.#arrange([...this.views.values()].map((view) => view.element));
  }

  /**
   * Does not touch elements already in place, so sounds keep playing and a selection survives.
   * @param {Element[]} elements
   */
  #arrange(elements) {
    const { children } = this.thread;
    for (const [i, element] of elements.entries()) {
      if (children[i] !== element) this.thread.insertBefore(element, children[i] ?? null);
    }
    while (children.length > elements.length) children[children.length - 1].remove();
  }

  /** @param {string} id */
  view(id) {
    return this.views.get(id);
  }

  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const left = scrollHeight - scrollTop - clientHeight;
    if (left < NEAR) this.following = true;
    else if (scrollTop < this.top) this.following = false; // scrolled up by hand
    this.top = scrollTop;
    this.jump.hidden = this.following || left < AWAY;
  }

  toEnd() {
    this.following = true;
    this.jump.hidden = true;
    this.scroller.scrollTop = this.views.size ? this.scroller.scrollHeight : 0;
  }
}
