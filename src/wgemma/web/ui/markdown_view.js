/**
 * Draws Markdown while it streams.
 *
 * The cost per token does not grow with the answer: finished blocks are dropped from the model, the rest is parsed once
 * per frame and diffed against what is drawn. Only differences touch the DOM, so a selection survives. Nodes come from a
 * fixed set of kinds; the only attribute taken from the text is a checked URL.
 */

import { h, icon, announce } from "./dom.js";
import { blocks } from "./markdown_blocks.js";
import { inline } from "./markdown_inline.js";
import { highlight } from "./highlight.js";

/** Longer texts are shown as plain text: no answer is that long. */
const LONGEST = 1 << 20;

/** Escaped: control characters and bidi overrides. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;

/** A line start that may become a list, heading, rule or code: hidden until that is clear. */
const LOOSE_END = /^[ \t]{0,40}(?:[-*+]{1,2}|#{1,6}|\d{1,3}[.)]?|`{1,2})[ \t]{0,4}$/;

/** @param {string} text */
const clean = (text) =>
  text.replace(/\r\n?/g, "\n").replace(UNSEEN, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

/**
 * A block or inline node with its DOM node, the `host` of its children, and `children` as drawn. Each kind has some of
 * these fields.
 * @typedef {{is: string, dom: Node, host: Node, children: Drawn[], line: number, source: string,
 *   open: boolean, text: string, level: number, ordered: boolean, start: number, loose: boolean, task: string,
 *   href: string, target: string, align: string, heads: boolean, language: string, closed: boolean}} Drawn
 */

/** @param {object[]} nodes @returns {Drawn[]} */
const toDraw = (nodes) => /** @type {Drawn[]} */ (nodes);

/** @param {Drawn} node @param {keyof Drawn} field */
const has = (node, field) => field in node;

export class MarkdownView {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.text = "";
    this.start = 0; // where blocks may still change
    /** @type {Drawn[]} */
    this.tail = [];
    this.open = false;
    this.frame = 0;
    this.pause = 0;
  }

  /** Shows a complete text. @param {string} text */
  show(text) {
    this.cancel();
    this.root.replaceChildren();
    this.text = clean(text);
    this.start = 0;
    this.tail = [];
    this.open = false;
    this.draw();
  }

  /** Appends text; drawn in the next frame, or later if drawing is slow. @param {string} text */
  write(text) {
    this.text += clean(text);
    this.open = true;
    if (this.frame) return;
    const next = () => {
      this.frame = 0;
      const began = performance.now();
      this.draw();
      this.pause = 3 * (performance.now() - began);
    };
    this.frame = this.pause > 16 ? -setTimeout(next, this.pause) : requestAnimationFrame(next);
  }

  /** The text is complete. */
  end() {
    this.cancel();
    this.open = false;
    this.draw();
  }

  cancel() {
    if (this.frame > 0) cancelAnimationFrame(this.frame);
    else clearTimeout(-this.frame);
    this.frame = 0;
  }

  draw() {
    if (this.text.length > LONGEST) {
      this.root.replaceChildren(h("pre", { class: "plain" }, this.text));
      return;
    }
    const lines = this.text.slice(this.start).split("\n");
    if (this.open && LOOSE_END.test(lines[lines.length - 1])) lines[lines.length - 1] = "";
    const fresh = toDraw(blocks(lines));
    if (this.open) mark(fresh.at(-1));
    patch(this.root, this.tail, fresh);
    this.tail = fresh;
    if (this.open) this.settle(lines);
  }

  /**
   * Drops finished blocks: those followed by two complete lines of others.
   * @param {string[]} lines
   */
  settle(lines) {
    const kept = this.tail.findLastIndex((block) => block.line + 2 < lines.length);
    if (kept < 1) return;
    for (let i = 0; i < this.tail[kept].line; i++) this.start += lines[i].length + 1;
    this.tail = this.tail.slice(kept);
  }
}

/** Marks the last leaf of a growing text, which may have unclosed marks. @param {Drawn | undefined} block */
function mark(block) {
  while (block?.children?.length) block = block.children.at(-1);
  if (block && has(block, "source")) block.open = true;
}

/**
 * Turns `old`, the last children of `parent`, into `fresh`.
 * @param {Node} parent @param {Drawn[]} old @param {Drawn[]} fresh
 */
function patch(parent, old, fresh) {
  for (let i = 0; i < fresh.length; i++) {
    if (i >= old.length) parent.appendChild(create(fresh[i]));
    else if (!update(old[i], fresh[i])) parent.replaceChild(create(fresh[i]), old[i].dom);
  }
  for (let i = fresh.length; i < old.length; i++) parent.removeChild(old[i].dom);
}

/**
 * Updates an old node in place if the new one has the same kind.
 * @param {Drawn} old @param {Drawn} fresh @returns {boolean}
 */
function update(old, fresh) {
  if (old.is !== fresh.is || KINDS[fresh.is].shape?.(old) !== KINDS[fresh.is].shape?.(fresh)) return false;
  fresh.dom = old.dom;
  fresh.host = old.host;
  if (has(fresh, "source")) {
    if (fresh.source === old.source && fresh.open === old.open) fresh.children = old.children;
    else {
      fresh.children = toDraw(inline(fresh.source, fresh.open));
      patch(fresh.host, old.children, fresh.children);
    }
  } else if (fresh.is === "code" && has(fresh, "language")) updateCode(old, fresh);
  else if (has(fresh, "text")) setText(fresh.host, old.text, fresh.text);
  else if (has(fresh, "children")) patch(fresh.host, old.children, fresh.children);
  KINDS[fresh.is].change?.(fresh);
  return true;
}

/**
 * Appends to a text that grew, so that a selection survives.
 * @param {Node} node @param {string} old @param {string} text
 */
function setText(node, old, text) {
  if (text === old) return;
  const data = node instanceof Text ? node : node.firstChild;
  if (data instanceof Text && old && text.startsWith(old)) data.appendData(text.slice(old.length));
  else node.textContent = text;
}

/** @param {Drawn} node @returns {Node} */
function create(node) {
  const kind = KINDS[node.is];
  const made = kind.make(node);
  ({ dom: node.dom, host: node.host } = made instanceof Node ? { dom: made, host: made } : made);
  if (has(node, "source")) node.children = toDraw(inline(node.source, node.open));
  if (node.children) for (const child of node.children) node.host.appendChild(create(child));
  kind.change?.(node);
  return node.dom;
}

/**
 * How to draw each kind. Nodes of equal `shape` are updated in place; `change` runs after making and updating.
 * @typedef {{make: (node: Drawn) => Node | {dom: Node, host: Node}, shape?: (node: Drawn) => unknown, change?: (node: Drawn) => void}} Kind
 * @type {Record<string, Kind>}
 */
const KINDS = {
  text: { make: (node) => document.createTextNode(node.text) },
  em: { make: () => h("em") },
  strong: { make: () => h("strong") },
  del: { make: () => h("del") },
  br: { make: () => h("br") },
  math: { make: (node) => h("span", { class: "math" }, node.text) },
  mathblock: { make: (node) => h("div", { class: "math" }, node.text) },
  link: { make: link, shape: (node) => `${node.href} ${node.target}` },
  p: { make: () => h("p") },
  heading: { make: (node) => document.createElement(`h${Math.min(6, node.level + 2)}`), shape: (node) => node.level },
  hr: { make: () => h("hr") },
  quote: { make: () => h("blockquote") },
  list: {
    make: (node) => (node.ordered ? h("ol", { start: node.start }) : h("ul")),
    shape: (node) => `${node.ordered} ${node.start}`,
    change: (node) => /** @type {Element} */ (node.dom).toggleAttribute("data-loose", node.loose),
  },
  item: { make: (node) => h("li", { class: node.task ? `task ${node.task}` : null }), shape: (node) => node.task },
  table: { make: table },
  head: { make: () => h("thead") },
  body: { make: () => h("tbody") },
  row: { make: () => h("tr") },
  cell: {
    make: (node) =>
      node.heads ? h("th", { class: node.align || null, scope: "col" }) : h("td", { class: node.align || null }),
    shape: (node) => `${node.heads} ${node.align}`,
  },
  code: {
    make: (node) => (has(node, "language") ? codeBlock(node) : h("code", {}, node.text)),
    shape: (node) => (has(node, "language") ? node.language : "inline"),
  },
};

/** @param {Drawn} node */
function link(node) {
  const host = h("span");
  const dom = h(
    "a",
    { href: node.href, target: "_blank", rel: "noopener noreferrer nofollow", title: node.href },
    host,
  );
  if (node.target) dom.append(h("span", { class: "target" }, ` ${node.target}`));
  return { dom, host };
}

function table() {
  const host = h("table");
  return { dom: h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" }, host), host };
}

/** @param {Drawn} node */
function codeBlock(node) {
  const host = h("code");
  const copy = h("button", { type: "button", class: "copy", "data-testid": "copy-code" }, icon("copy"), "Copy");
  copy.addEventListener("click", () => copyText(host.textContent ?? "", copy));
  const title = h("figcaption", {}, h("span", { class: "language" }, node.language || "text"), copy);
  const dom = h("figure", { class: "code" }, title, h("pre", { tabindex: "0" }, host));
  fillCode(host, node);
  return { dom, host };
}

/** Highlights code once it is complete. @param {Element} host @param {Drawn} node */
function fillCode(host, node) {
  if (node.closed) host.replaceChildren(...highlight(node.text, node.language));
  else host.textContent = node.text;
}

/** @param {Drawn} old @param {Drawn} fresh */
function updateCode(old, fresh) {
  if (fresh.closed !== old.closed || old.closed) {
    if (fresh.text !== old.text || fresh.closed !== old.closed) fillCode(/** @type {Element} */ (fresh.host), fresh);
  } else setText(fresh.host, old.text, fresh.text);
}

/** @param {string} text @param {HTMLButtonElement} button */
export async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1500);
  } catch {
    announce("The browser blocked copying. Select the text and copy it with the keyboard.");
  }
}
