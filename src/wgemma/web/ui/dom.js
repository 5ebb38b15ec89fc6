/**
 * Makes elements. HTML is never parsed: text stays text.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * h("button", {class: "quiet", onclick: f, "aria-label": "Copy"}, icon("copy"), "Copy")
 *
 * Properties that start with "on" are listeners. `true` sets an empty attribute; false, null and undefined set none.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

/**
 * Parts of the page with a more specific type than HTMLElement.
 * @typedef {{"model-select": HTMLSelectElement, "bench-model": HTMLSelectElement, prompt: HTMLTextAreaElement,
 *   search: HTMLInputElement, send: HTMLButtonElement, load: HTMLButtonElement,
 *   "bench-file": HTMLInputElement, "pick-file": HTMLInputElement, "adapter-file": HTMLInputElement,
 *   "finetune-file": HTMLInputElement,   "attach-image": HTMLInputElement, "attach-audio": HTMLInputElement, import: HTMLInputElement}} Parts
 */

/**
 * The element with this `data-testid`; the page uses them as names, too.
 * @template {string} N @param {N} name @returns {N extends keyof Parts ? Parts[N] : HTMLElement}
 */
export function part(name) {
  const found = document.querySelector(`[data-testid="${name}"]`);
  if (!found) throw new Error(`the page has no part called ${name}`);
  return /** @type {N extends keyof Parts ? Parts[N] : HTMLElement} */ (found);
}

/** Paths in a 24 × 24 view box. */
const ICONS = {
  attach: "M20 11.5 12.2 19.3a5 5 0 0 1-7.1-7.1l8.3-8.2a3.3 3.3 0 0 1 4.7 4.7l-8.3 8.2a1.7 1.7 0 0 1-2.4-2.4l7.6-7.5",
  camera: "M4 8h3l1.5-2.5h7L17 8h3v11H4zM12 16.5a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7",
  check: "m5 12.5 4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  curve: "M4 4v16h16M8 7c1.5 7 4.5 9 11 9.5",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5",
  down: "M12 5v14M6 13l6 6 6-6",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  help: "M9.2 9.2a2.9 2.9 0 1 1 4.3 2.6c-1 .6-1.5 1.2-1.5 2.2M12 17.3v.2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18",
  image: "M4 5h16v14H4zM4 16l5-5 4.5 4.5L16 13l4 4M15.5 9.2v.1",
  layers: "M12 4 3.5 8.5 12 13l8.5-4.5zM3.5 12.5 12 17l8.5-4.5M3.5 16.5 12 21l8.5-4.5",
  left: "m14 6-6 6 6 6",
  light:
    "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8M12 3v2M12 19v2M3 12h2M19 12h2" +
    "M5.6 5.6 7 7M17 17l1.4 1.4M18.4 5.6 17 7M7 17l-1.4 1.4",
  menu: "M4 7h16M4 12h16M4 17h16",
  microphone: "M12 15a3 3 0 0 0 3-3V6a3 3 0 0 0-6 0v6a3 3 0 0 0 3 3M6 11.5a6 6 0 0 0 12 0M12 17.5V21",
  more: "M6 12v.1M12 12v.1M18 12v.1",
  plus: "M12 5v14M5 12h14",
  redo: "M19 12a7 7 0 1 1-2.1-5M17.5 3v4.5H13",
  right: "m10 6 6 6-6 6",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14M16 16l4.5 4.5",
  send: "M12 19V5M6 11l6-6 6 6",
  settings:
    "M4 7h9M17 7h3M15 9.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5" +
    "M4 17h3M11 17h9M9 19.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5",
  sound: "M5 10v4M9 6v12M13 9v6M17 4v16M21 10v4",
  stop: "M7 7h10v10H7z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  think: "M9.5 18h5M10 21h4M12 3a6 6 0 0 0-3.5 10.9c.7.5 1 1.2 1 2.1h5c0-.9.3-1.6 1-2.1A6 6 0 0 0 12 3",
  tool: "M14.5 6.5a4 4 0 0 0-5.2 5.2L4 17l3 3 5.3-5.3a4 4 0 0 0 5.2-5.2L15 12l-3-3z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
};

/** An SVG icon, hidden from screen readers. @param {keyof typeof ICONS} name */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" })) {
    drawing.setAttribute(key, value);
  }
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  drawing.append(path);
  return drawing;
}

/**
 * A button with only an icon; the label is its tooltip and accessible name.
 * @param {keyof typeof ICONS} drawing @param {string} label @param {Record<string, unknown>} [properties]
 */
export function iconButton(drawing, label, properties = {}) {
  return h(
    "button",
    { type: "button", class: "icon-button", title: label, "aria-label": label, ...properties },
    icon(drawing),
  );
}

/** Replaces each <span data-icon="send"> by its icon. */
export function placeIcons() {
  /** @type {NodeListOf<HTMLElement>} */
  const places = document.querySelectorAll("[data-icon]");
  for (const place of places) {
    place.replaceWith(icon(/** @type {keyof typeof ICONS} */ (place.dataset.icon)));
  }
}

let clearing = 0;

/** Tells screen readers. @param {string} text */
export function announce(text) {
  const region = document.getElementById("announcer");
  if (!region) return;
  region.textContent = text;
  clearTimeout(clearing);
  clearing = setTimeout(() => (region.textContent = ""), 10_000);
}
