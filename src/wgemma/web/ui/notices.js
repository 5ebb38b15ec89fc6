/** Toasts, which disappear, and notices, which stay until dismissed. */

import { h, iconButton } from "./dom.js";

const SHOWN = 8000;

/**
 * @param {string} text
 * @param {{label: string, act: () => void}} [offer] a button
 */
export function toast(text, offer) {
  const item = h("div", { class: "toast" }, h("span", {}, text));
  const timer = setTimeout(() => item.remove(), SHOWN);
  const close = () => {
    clearTimeout(timer);
    item.remove();
  };
  if (offer) {
    const act = () => {
      close();
      offer.act();
    };
    item.append(h("button", { type: "button", onclick: act, "data-testid": "toast-action" }, offer.label));
  }
  item.append(iconButton("close", "Dismiss", { onclick: close }));
  document.getElementById("toasts")?.append(item);
}

/**
 * A notice above the conversation; one of each `name` at a time.
 * @param {string} name @param {string} text @param {{label: string, act: () => void}} [offer]
 */
export function notice(name, text, offer) {
  const place = document.getElementById("notices");
  withdraw(name);
  const item = h(
    "div",
    { class: "notice", role: "alert", "data-notice": name, "data-testid": `notice-${name}` },
    h("span", {}, text),
  );
  if (offer) item.append(h("button", { type: "button", onclick: offer.act }, offer.label));
  item.append(iconButton("close", "Dismiss", { onclick: () => item.remove() }));
  place?.append(item);
}

/** @param {string} name */
export function withdraw(name) {
  document.querySelector(`[data-notice="${name}"]`)?.remove();
}
