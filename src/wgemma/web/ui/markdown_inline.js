/**
 * The text of one paragraph → emphasis, code, links and plain text. Pure: strings in, plain objects out.
 *
 * A model's output is hostile. Nothing here makes HTML; besides text, only link URLs come out, and only http, https and
 * mailto. Images become links, so nothing is ever fetched. Time is linear in the text, and nesting is limited to DEPTH.
 *
 * @typedef {{is: "text"|"code"|"math", text: string}
 *   | {is: "em"|"strong"|"del", children: Inline[]}
 *   | {is: "link", href: string, target: string, children: Inline[]}
 *   | {is: "br"}} Inline
 */

import { DEPTH, emphasised, joined } from "./markdown_emphasis.js";

const LONGEST_RUN = 8; // of * or _; longer runs are decoration
const LONGEST_ADDRESS = 2048;

const SPECIAL = /[\\`*_~[\]!<&\n$]|https?:\/\//g;
const ENTITIES = new Map(Object.entries({ amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" }));
const SPACE = /\s/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
// Scripts without spaces between words, where emphasis may start and end anywhere.
const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Script=Thai}]/u;

/**
 * @param {string} text
 * @param {boolean} [open] more text will follow: unclosed bold and code are shown as closed
 * @returns {Inline[]}
 */
export function inline(text, open = false) {
  return new Scanner(text, open).scan();
}

class Scanner {
  /** @param {string} text @param {boolean} open */
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.at = 0;
    /** @type {import("./markdown_emphasis.js").Item[]} */
    this.items = [];
    /** @type {number[]} indices in `items` of open brackets */
    this.brackets = [];
    /** @type {Map<number, number[]> | null} backtick runs by length, computed on first use */
    this.ticks = null;
    /** @type {Map<string, number>} where each closing mark was last found, so that none is searched for twice */
    this.ahead = new Map();
  }

  scan() {
    const { text } = this;
    while (this.at < text.length) {
      SPECIAL.lastIndex = this.at;
      const found = SPECIAL.exec(text);
      if (!found) break;
      const before = text.slice(this.at, found.index);
      this.at = found.index;
      if (found[0] === "\n") this.newline(before);
      else {
        this.put(before);
        this.special(found[0]);
      }
    }
    this.put(text.slice(this.at));
    return emphasised(this.items, this.open);
  }

  /** @param {string} text */
  put(text) {
    if (!text) return;
    const last = this.items.at(-1);
    if (last && "is" in last && last.is === "text") last.text += text;
    else this.items.push({ is: "text", text });
  }

  /** @param {string} text taken literally */
  take(text) {
    this.put(text);
    this.at += text.length;
  }

  /** @param {string} char */
  special(char) {
    switch (char) {
      case "\\":
        return this.escape();
      case "`":
        return this.code();
      case "*":
      case "_":
      case "~":
        return this.run(char);
      case "!":
        return this.text[this.at + 1] === "[" ? this.bracket("![") : this.take("!");
      case "[":
        return this.bracket("[");
      case "]":
        return this.closeBracket();
      case "<":
        return this.angle();
      case "&":
        return this.entity();
      case "$":
        return this.math();
      default:
        return this.address();
    }
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") {
      const close = next === "(" ? "\\)" : "\\]";
      const end = this.find(close, this.at + 2);
      if (end > 0) {
        this.items.push({ is: "math", text: this.text.slice(this.at + 2, end).trim() });
        this.at = end + 2;
        return;
      }
    }
    if (next === "\n") {
      this.items.push({ is: "br" });
      this.at += 2;
    } else if (next && /[!-/:-@[-`{-~]/.test(next)) {
      this.put(next);
      this.at += 2;
    } else this.take("\\");
  }

  /** Two trailing spaces make a hard line break. @param {string} line */
  newline(line) {
    this.put(line.trimEnd());
    if (line.endsWith("  ")) this.items.push({ is: "br" });
    else this.put("\n");
    this.at += 1;
  }

  /** The next closing mark, if it is near. @param {string} mark @param {number} from */
  find(mark, from) {
    let place = this.ahead.get(mark) ?? -1;
    if (place < from) {
      place = this.text.indexOf(mark, from);
      this.ahead.set(mark, place < 0 ? Infinity : place);
    }
    return place >= from && place - from < LONGEST_ADDRESS ? place : -1;
  }

  /**
   * Code between backtick runs of equal length. Runs are indexed once, so a million unmatched ones stay cheap.
   */
  code() {
    const length = runLength(this.text, this.at, "`");
    const start = this.at + length;
    const end = this.closingTicks(length, start);
    if (end === undefined && !(this.open && length < 3 && start < this.text.length))
      return this.take("`".repeat(length));
    let body = this.text.slice(start, end).replaceAll("\n", " ");
    if (body.length > 2 && body.startsWith(" ") && body.endsWith(" ") && body.trim()) body = body.slice(1, -1);
    this.items.push({ is: "code", text: body });
    this.at = end === undefined ? this.text.length : end + length;
  }

  /** @param {number} length @param {number} from @returns {number | undefined} */
  closingTicks(length, from) {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const run of this.text.matchAll(/`+/g)) {
        const places = this.ticks.get(run[0].length);
        if (places) places.push(run.index);
        else this.ticks.set(run[0].length, [run.index]);
      }
      for (const places of this.ticks.values()) places.reverse(); // the next one is at the end
    }
    const places = this.ticks.get(length) ?? [];
    while (places.length && places[places.length - 1] < from) places.pop();
    return places.at(-1);
  }

  /** @param {string} mark */
  run(mark) {
    const count = runLength(this.text, this.at, mark);
    const end = this.at + count;
    const before = charBefore(this.text, this.at);
    const after = charAfter(this.text, end);
    if (count > LONGEST_RUN || (mark === "~" && count !== 2)) return this.take(mark.repeat(count));
    const left = !blank(after) && (!edge(after) || blank(before) || edge(before));
    const right = !blank(before) && (!edge(before) || blank(after) || edge(after));
    const word = mark === "_"; // snake_case is not emphasis
    const opens = left && (!word || !right || PUNCTUATION.test(before));
    const closes = right && (!word || !left || PUNCTUATION.test(after));
    this.items.push({ mark, count, opens, closes, starts: [], ends: [] });
    this.at = end;
  }

  /** @param {string} text */
  bracket(text) {
    if (this.brackets.length > DEPTH) return this.take(text);
    this.brackets.push(this.items.length);
    this.items.push({ bracket: text });
    this.at += text.length;
  }

  closeBracket() {
    const place = this.brackets.pop();
    const address = place !== undefined && this.text[this.at + 1] === "(" && destination(this.text, this.at + 2);
    if (place === undefined || !address) return this.take("]");
    const [opener, ...inside] = this.items.splice(place);
    const image = "bracket" in opener && opener.bracket === "![";
    let children = emphasised(inside, false);
    if (image) children = [{ is: "text", text: `🖼 ${plain(children) || "image"}` }];
    this.items.push(...linked(address.href, children));
    this.at = address.end;
    if (!image) this.brackets.length = 0; // links do not nest
  }

  /** `<https://…>`, `<a@b.c>` and `<br>`; any other tag is text. */
  angle() {
    const end = this.find(">", this.at);
    const body = end > 0 ? this.text.slice(this.at + 1, end) : "";
    if (/^br ?\/?$/i.test(body)) this.items.push({ is: "br" });
    else if (/^https?:\/\/[^\s<]+$/i.test(body)) this.items.push(...linked(body, [{ is: "text", text: body }]));
    else if (/^[\w.+-]{1,64}@[\w.-]{1,255}$/.test(body)) {
      this.items.push(...linked(`mailto:${body}`, [{ is: "text", text: body }]));
    } else return this.take("<");
    this.at = end + 1;
  }

  entity() {
    const found = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,4}));/.exec(this.text.slice(this.at, this.at + 12));
    const code = found?.[1] ? Number(found[1]) : found?.[2] ? parseInt(found[2], 16) : 0;
    const name = found?.[3];
    const char = name ? ENTITIES.get(name) : code > 31 && code < 0x110000 ? String.fromCodePoint(code) : undefined;
    if (!found || !char) return this.take("&");
    this.put(char);
    this.at += found[0].length;
  }

  /** `$x_1$` is kept literally, underscores and all; `$5 and $6` is money. */
  math() {
    const { text, at } = this;
    const double = text[at + 1] === "$";
    const start = at + (double ? 2 : 1);
    const end = this.find(double ? "$$" : "$", start);
    const body = end > start ? text.slice(start, end) : "";
    const good =
      body && (double || (!SPACE.test(body[0]) && !SPACE.test(body.at(-1) ?? " ") && !/\d/.test(text[end + 1] ?? "")));
    if (!good) return this.take(double ? "$$" : "$");
    this.items.push({ is: "math", text: body.trim() });
    this.at = end + (double ? 2 : 1);
  }

  /** A bare URL; trailing punctuation belongs to the sentence. */
  address() {
    const pattern = /https?:\/\/[^\s<>"`[\]]+/y;
    pattern.lastIndex = this.at;
    const before = charBefore(this.text, this.at);
    const found = /[\p{L}\p{N}]/u.test(before) ? null : pattern.exec(this.text);
    if (!found) return this.take("http");
    if (found[0].length > LONGEST_ADDRESS) return this.take(found[0]);
    const href = sentenceAside(found[0]);
    this.items.push(...linked(href, [{ is: "text", text: href }]));
    this.at += href.length;
  }
}

/** @param {string} text @param {number} from @param {string} char */
function runLength(text, from, char) {
  let end = from;
  while (text[end] === char) end++;
  return end - from;
}

/** A URL without trailing punctuation, but with a bracket that it opened itself. @param {string} href */
function sentenceAside(href) {
  let spare = href.split(")").length - href.split("(").length;
  let end = href.length;
  for (; end > 0; end--) {
    const char = href[end - 1];
    if (char === ")" && spare > 0) spare--;
    else if (!".,;:!?'*_~".includes(char)) break;
  }
  return href.slice(0, end);
}

/** The character before an index; a space at the start of the text. @param {string} text @param {number} at */
function charBefore(text, at) {
  const low = text[at - 1] ?? " ";
  return low >= "\udc00" && low <= "\udfff" ? text.slice(at - 2, at) : low;
}

/** @param {string} text @param {number} at */
const charAfter = (text, at) => (at < text.length ? String.fromCodePoint(text.codePointAt(at) ?? 32) : " ");

/** @param {string} char */
const blank = (char) => SPACE.test(char);

/** Whether a word may end beside this character. @param {string} char */
const edge = (char) => PUNCTUATION.test(char) || UNSPACED.test(char);

/**
 * Parses `(url "title")` after a link's text.
 * @param {string} text @param {number} from @returns {{href: string, end: number} | undefined}
 */
function destination(text, from) {
  const rest = text.slice(from, from + LONGEST_ADDRESS);
  const found = /^\s{0,8}(?:<([^<>\n]*)>|((?:[^\s()<]|\([^\s()<]*\))*))(?:\s{1,8}(?:"[^"]*"|'[^']*'))?\s{0,8}\)/.exec(
    rest,
  );
  return found ? { href: found[1] ?? found[2], end: from + found[0].length } : undefined;
}

/**
 * A link if its URL is allowed, else its text and the URL as text.
 * @param {string} href @param {Inline[]} children @returns {Inline[]}
 */
function linked(href, children) {
  const target = followable(href);
  if (target === undefined) return [...children, { is: "text", text: ` (${href})` }];
  const inside = joined(unlinked(children));
  return [{ is: "link", href: target.href, target: shownTarget(target, plain(inside)), children: inside }];
}

/** A link's text without nested links. @param {Inline[]} nodes @returns {Inline[]} */
function unlinked(nodes) {
  return nodes.flatMap((node) => {
    if (node.is === "link") return node.children;
    return "children" in node ? [{ ...node, children: unlinked(node.children) }] : [node];
  });
}

/** @param {string} href @returns {URL | undefined} */
function followable(href) {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : undefined;
  } catch {
    return undefined;
  }
}

/**
 * A link's host in ASCII (punycode, so no look-alikes), unless the text already says it.
 * @param {URL} url @param {string} text
 */
function shownTarget(url, text) {
  const said = text.trim().toLowerCase();
  const where = url.protocol === "mailto:" ? url.pathname : url.host;
  return followable(said)?.href === url.href.toLowerCase() || said === where ? "" : where;
}

/** The plain text of nodes. @param {Inline[]} nodes @returns {string} */
export function plain(nodes) {
  return nodes.map((node) => ("children" in node ? plain(node.children) : "text" in node ? node.text : " ")).join("");
}
