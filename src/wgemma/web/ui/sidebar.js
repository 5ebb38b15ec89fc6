/**
 * The list of chats: newest first, grouped by age, searchable; each can be opened, renamed, exported and deleted. On a
 * narrow screen it is a drawer.
 *
 * @typedef {import("./store.js").Chat} Chat
 */

import { announce, h, iconButton, part } from "./dom.js";
import { period, plural } from "./format.js";

export class Sidebar {
  /**
   * @param {import("./store.js").Store} store
   * @param {{open: (id: string) => void, rename: (chat: Chat, title: string) => void, remove: (chat: Chat) => void,
   *   save: (chat: Chat) => void}} deeds
   */
  constructor(store, deeds) {
    this.store = store;
    this.deeds = deeds;
    this.list = /** @type {HTMLElement} */ (document.getElementById("chats"));
    this.element = /** @type {HTMLElement} */ (document.getElementById("sidebar"));
    this.scrim = /** @type {HTMLElement} */ (document.getElementById("scrim"));
    this.opener = /** @type {HTMLElement} */ (document.getElementById("open-sidebar"));
    /** @type {HTMLInputElement} */ this.search = part("search");
    this.current = "";
    this.asked = 0;
    let timer = 0;
    this.search.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(true), 120);
    });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown")
        /** @type {HTMLElement | null} */ (this.list.querySelector("button.open"))?.focus();
      if (event.key === "Escape" && this.search.value) {
        event.stopPropagation();
        this.search.value = "";
        this.refresh();
      }
    });
    this.list.addEventListener("keydown", (event) => this.#walk(event));
    this.opener.addEventListener("click", () => this.slide(true));
    document.getElementById("close-sidebar")?.addEventListener("click", () => this.slide(false));
    this.scrim.addEventListener("click", () => this.slide(false));
  }

  // -- the drawer

  /** @param {boolean} out */
  slide(out) {
    if (this.isOut === out) return;
    this.element.classList.toggle("out", out);
    this.scrim.hidden = !out;
    /** @type {HTMLElement} */ (document.querySelector("main")).inert = out;
    this.opener.setAttribute("aria-expanded", String(out));
    if (out) this.element.querySelector("button")?.focus();
    else if (this.element.contains(document.activeElement)) this.opener.focus();
  }

  /** Focuses the search box. */
  find() {
    if (getComputedStyle(this.opener).display !== "none") this.slide(true); // it is a drawer
    this.search.focus();
  }

  get isOut() {
    return this.element.classList.contains("out");
  }

  // -- the list

  /** @param {boolean} [told] announce how many were found */
  async refresh(told = false) {
    const asked = ++this.asked;
    const words = this.search.value.trim();
    /** @type {Chat[]} */
    const all = await this.store.all("chats").catch(() => []);
    const found = words ? await this.store.search(words).catch(() => new Map()) : null;
    if (asked !== this.asked) return; // a newer search is running
    const shown = all.filter((chat) => !found || found.has(chat.id)).sort((a, b) => b.updated - a.updated);
    if (told && found) announce(`${plural(shown.length, "chat")} found.`);
    /** @type {HTMLElement[]} */
    const groups = [];
    let heading = "";
    for (const chat of shown) {
      const next = period(chat.updated);
      if (next !== heading || !groups.length) {
        heading = next;
        groups.push(h("section", {}, h("h2", {}, heading), h("ul")));
      }
      groups[groups.length - 1].lastElementChild?.append(this.#item(chat, found?.get(chat.id) ?? ""));
    }
    if (!shown.length)
      groups.push(h("p", { class: "none" }, words ? "No chats found." : "Your chats will be listed here."));
    if (this.list.querySelector("input")) return; // a chat is being renamed
    const inside = this.list.contains(document.activeElement);
    this.list.replaceChildren(...groups);
    const next = this.list.querySelector("[aria-current]") ?? this.list.querySelector("button") ?? this.search;
    if (inside) /** @type {HTMLElement} */ (next).focus();
  }

  /** @param {Chat} chat @param {string} snippet */
  #item(chat, snippet) {
    const open = h(
      "button",
      {
        type: "button",
        class: "open",
        title: chat.title,
        "aria-current": chat.id === this.current ? "true" : null,
        "data-testid": "chat",
        onclick: () => this.deeds.open(chat.id),
      },
      h("span", {}, chat.title),
      snippet && h("small", {}, snippet),
    );
    const item = h(
      "li",
      {},
      open,
      h(
        "span",
        { class: "tools" },
        iconButton("edit", `Rename ${chat.title}`, {
          onclick: () => this.#rename(item, chat),
          "data-testid": "rename",
        }),
        iconButton("download", `Export ${chat.title}`, {
          onclick: () => this.deeds.save(chat),
          "data-testid": "export-chat",
        }),
        iconButton("trash", `Delete ${chat.title}`, {
          onclick: () => this.deeds.remove(chat),
          "data-testid": "delete",
        }),
      ),
    );
    return item;
  }

  /** @param {HTMLElement} item @param {Chat} chat */
  #rename(item, chat) {
    const input = h("input", { "aria-label": "Chat title", maxlength: "200", "data-testid": "rename-input" });
    input.value = chat.title;
    let over = false;
    const finish = (/** @type {boolean} */ keep) => {
      if (over) return;
      over = true;
      input.remove();
      const title = input.value.trim();
      if (keep && title && title !== chat.title) this.deeds.rename(chat, title);
      else this.refresh();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) finish(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      }
    });
    input.addEventListener("blur", () => finish(true));
    item.replaceChildren(input);
    input.select();
  }

  /** Arrow keys move between chats. @param {KeyboardEvent} event */
  #walk(event) {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const buttons = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("button.open")]);
    const at = buttons.findIndex((button) => button.parentElement?.contains(document.activeElement));
    const next = buttons[at + (event.key === "ArrowDown" ? 1 : -1)];
    if (at < 0) return;
    event.preventDefault();
    if (next) next.focus();
    else if (event.key === "ArrowUp") this.search.focus();
  }
}
