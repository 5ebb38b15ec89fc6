/**
 * The messages of the open chat, and scrolling.
 *
 * At the end, the view follows a growing answer; after scrolling up it stays put and offers a button back. Of a long
 * chat the last messages are shown, and earlier ones on request.
 *
 * @typedef {import("./store.js").Message} Message
 */

import { h } from "./dom.js";
import { MessageView } from "./message.js";
import { Tree } from "./thread.js";

const NEAR = 8; // pixels from the end that count as the end
const AWAY = 120; // pixels from the end that bring up the button
const STEP = 40; // messages shown at first, and added on request

export class Conversation {
  /** @param {import("./message.js").Deeds} deeds */
  constructor(deeds) {
    this.deeds = deeds;
    this.thread = /** @type {HTMLElement} */ (document.getElementById("thread"));
    this.scroller = /** @type {HTMLElement} */ (document.getElementById("scroller"));
    this.jump = /** @type {HTMLElement} */ (document.getElementById("jump"));
    /** @type {Map<string, MessageView>} */
    this.views = new Map();
    /** @type {Message[]} */ this.branch = [];
    this.tree = new Tree([]);
    this.first = ""; // the id of the first message on the page
    this.earlier = h("button", { type: "button", class: "earlier", "data-testid": "earlier" }, "Show earlier messages");
    this.earlier.addEventListener("click", () => this.#showEarlier());
    this.following = true;
    this.top = 0;
    this.scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    this.jump.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.following && this.toEnd()).observe(this.thread);
  }

  /**
   * Shows a branch; messages already on the page are reused.
   * @param {Message[]} branch @param {Tree} tree
   */
  show(branch, tree) {
    Object.assign(this, { branch, tree });
    const before = this.views;
    this.views = new Map();
    const last = branch.findLast((message) => message.role !== "tool");
    const from = this.#from();
    this.first = branch[from]?.id ?? "";
    for (const [i, message] of branch.entries()) {
      if (message.role === "tool" || i < from) continue;
      const place = { versions: tree.versions(message), results: branch[i + 1]?.results, last: message === last };
      let view = before.get(message.id);
      if (view && view.results === place.results) view.place(place);
      else view = new MessageView(message, place, this.deeds);
      this.views.set(message.id, view);
    }
    this.#arrange([...(from ? [this.earlier] : []), ...[...this.views.values()].map((view) => view.element)]);
  }

  /** Where in the branch the page begins. */
  #from() {
    const at = this.branch.findIndex((message) => message.id === this.first);
    return at < 0 ? Math.max(0, this.branch.length - STEP) : at;
  }

  /** What is being read stays where it is. */
  #showEarlier() {
    const anchor = this.earlier.nextElementSibling;
    const top = () => anchor?.getBoundingClientRect().top ?? 0;
    const before = top();
    this.first = this.branch[Math.max(0, this.#from() - STEP)].id;
    this.following = false;
    this.show(this.branch, this.tree);
    this.scroller.scrollTop += top() - before;
    if (!this.earlier.isConnected) this.scroller.focus();
  }

  /**
   * Does not touch elements already in place, so sounds keep playing and a selection survives.
   * @param {Element[]} elements
   */
  #arrange(elements) {
    const wanted = new Set(elements);
    for (const child of [...this.thread.children]) if (!wanted.has(child)) child.remove();
    let next = this.thread.firstElementChild;
    for (const element of elements) {
      if (next === element) next = element.nextElementSibling;
      else this.thread.insertBefore(element, next);
    }
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
