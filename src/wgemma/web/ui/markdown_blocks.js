/**
 * Markdown lines → blocks: paragraphs, headings, lists, quotes, tables, code, rules. Pure: strings in, objects out.
 *
 * A subset of CommonMark that models write: no indented code (models indent carelessly), no underlined headings (a rule
 * under a paragraph is a rule), no HTML and no link definitions. One forward pass: a line never changes a block before
 * the last, so the view can draw a growing text incrementally.
 *
 * @typedef {{is: "p", source: string}
 *   | {is: "cell", source: string, align: string, heads: boolean}
 *   | {is: "heading", level: number, source: string}
 *   | {is: "code", language: string, text: string, closed: boolean}
 *   | {is: "mathblock", text: string}
 *   | {is: "quote"|"row"|"head"|"body"|"table", children: Block[]}
 *   | {is: "item", task: ""|"open"|"done", children: Block[]}
 *   | {is: "list", ordered: boolean, start: number, loose: boolean, children: Block[]}
 *   | {is: "hr"}} Block
 *
 * @typedef {Block & {line?: number}} Placed with the line it starts at
 */

const DEPTH = 12;
const COLUMNS = 64;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])( {1,4}(?=\S)| *(?=$)| )/;

/**
 * @param {string[]} lines
 * @param {number} [depth]
 * @returns {Placed[]}
 */
export function blocks(lines, depth = 0) {
  /** @type {Placed[]} */
  const out = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const [block, next] = one(lines, at, depth);
    out.push(Object.assign(block, { line: at }));
    at = next;
  }
  return out;
}

/** The block that starts at a line, and the next line after it. @returns {[Block, number]} */
function one(/** @type {string[]} */ lines, /** @type {number} */ at, /** @type {number} */ depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return code(lines, at, fence[1], fence[2]);
  const heading = HEADING.exec(line);
  if (heading) {
    const source = line
      .slice(heading[0].length)
      .replace(/(?:^|[ \t])#{1,64}[ \t]{0,64}$/, "")
      .trim();
    return [{ is: "heading", level: heading[1].length, source }, at + 1];
  }
  if (isRule(line)) return [{ is: "hr" }, at + 1];
  if (depth < DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEPTH && ITEM.test(line)) return list(lines, at, depth);
  const math = mathBlock(lines, at);
  if (math) return math;
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, depth);
}

/** @param {string} line */
function isRule(line) {
  if (line.length > 200) return false;
  const marks = line.replace(/[ \t]/g, "");
  return marks.length > 2 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length) && indent(line) < 4;
}

/** @param {string} line */
function indent(line) {
  let width = 0;
  while (line[width] === " ") width++;
  return width;
}

/** Whether a line ends the paragraph before it. @param {string[]} lines @param {number} at @param {number} depth */
function interrupts(lines, at, depth) {
  const line = lines[at];
  if (!line.trim() || FENCE.test(line) || HEADING.test(line) || isRule(line)) return true;
  if (depth < DEPTH && (QUOTE.test(line) || startsList(line))) return true;
  return line.trim() === "$$" || line.trim() === "\\[" || isTable(lines, at);
}

/** Inside a paragraph, "1986. A year" is not a list. @param {string} line */
function startsList(line) {
  const found = ITEM.exec(line);
  return found !== null && found[0].length < line.length && (found[2].length === 1 || /^1[.)]$/.test(found[2]));
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end, depth)) end++;
  const source = lines.slice(at, end).map((line) => line.trimStart());
  return [{ is: "p", source: source.join("\n").trimEnd() }, end];
}

/** @param {string[]} lines @param {number} at @param {string} fence @param {string} info @returns {[Block, number]} */
function code(lines, at, fence, info) {
  const margin = indent(lines[at]);
  const language = info
    .trim()
    .split(/[\s{,]/, 1)[0]
    .slice(0, 40);
  const body = [];
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const trimmed = line.trim();
    if (trimmed.length >= fence.length && trimmed === fence[0].repeat(trimmed.length) && indent(line) < 4) break;
    body.push(margin ? line.slice(Math.min(indent(line), margin)) : line);
  }
  const closed = end < lines.length;
  return [{ is: "code", language, text: body.join("\n"), closed }, closed ? end + 1 : end];
}

/**
 * `$$ … $$` and `\[ … \]` on lines of their own.
 * @param {string[]} lines @param {number} at @returns {[Block, number] | undefined}
 */
function mathBlock(lines, at) {
  const first = lines[at].trim();
  const close = first === "$$" ? "$$" : first === "\\[" ? "\\]" : undefined;
  if (!close) return undefined;
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== close) end++;
  return [{ is: "mathblock", text: lines.slice(at + 1, end).join("\n") }, Math.min(end + 1, lines.length)];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function quote(lines, at, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length; end++) {
    const line = lines[end];
    const marked = QUOTE.exec(line);
    if (marked) inside.push(line.slice(marked[0].length));
    else if (inside[inside.length - 1].trim() && !interrupts(lines, end, depth)) inside.push(line);
    else break;
  }
  return [{ is: "quote", children: blocks(inside, depth + 1) }, end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @returns {[Block, number]} */
function list(lines, at, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const ordered = first[2].length > 1;
  /** @type {Block[]} */
  const children = [];
  let loose = false;
  let end = at;
  while (end < lines.length) {
    const marker = ITEM.exec(lines[end]);
    if (!marker || marker[2].length > 1 !== ordered || isRule(lines[end])) break;
    const [inside, next] = itemLines(lines, end, marker, depth);
    const parts = blocks(inside, depth + 1);
    if (inside.length > 1 && !inside[inside.length - 1].trim() && next < lines.length) loose ||= ITEM.test(lines[next]);
    loose ||= parts.some((part, i) => i > 0 && part.is === "p" && parts[i - 1].is === "p");
    children.push({ is: "item", task: task(parts[0]), children: parts });
    end = next;
  }
  return [{ is: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, loose, children }, end];
}

/**
 * Strips `[ ]` or `[x]` from an item's text.
 * @param {Block | undefined} first @returns {""|"open"|"done"}
 */
function task(first) {
  const box = first?.is === "p" ? /^\[([ xX])\]\s/.exec(first.source) : null;
  if (!box || first?.is !== "p") return "";
  first.source = first.source.slice(box[0].length);
  return box[1] === " " ? "open" : "done";
}

/**
 * The lines of an item, without its margin. An indent of two is enough, because models miscount.
 * @param {string[]} lines @param {number} at @param {RegExpExecArray} marker @param {number} depth
 * @returns {[string[], number]}
 */
function itemLines(lines, at, marker, depth) {
  const margin = marker[0].length;
  const least = Math.min(margin, marker[1].length + 2);
  const inside = [lines[at].slice(margin)];
  let fence = FENCE.exec(inside[0])?.[1] ?? "";
  let end = at + 1;
  for (; end < lines.length; end++) {
    const line = fence ? lines[end] : lines[end].replace(/^\t{1,16}/, (tabs) => "    ".repeat(tabs.length));
    const width = indent(line);
    const empty = !line.trim();
    if (!empty && width < least) {
      const lazy = !fence && inside[inside.length - 1].trim() && !ITEM.test(line) && !interrupts(lines, end, depth);
      if (!lazy) break;
    }
    const own = line.slice(Math.min(width, margin));
    if (fence && own.trim() === fence[0].repeat(own.trim().length) && own.trim().length >= fence.length) fence = "";
    else if (!fence) fence = FENCE.exec(own)?.[1] ?? "";
    inside.push(own);
  }
  return [inside, end];
}

// -- tables

/** @param {string[]} lines @param {number} at */
function isTable(lines, at) {
  const ruler = lines[at + 1];
  if (ruler === undefined || !lines[at].includes("|") || !/^[ \t|:-]*$/.test(ruler) || !ruler.includes("-"))
    return false;
  const columns = cells(ruler);
  return columns.every((cell) => /^:?-+:?$/.test(cell)) && columns.length === cells(lines[at]).length;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function table(lines, at) {
  const aligns = cells(lines[at + 1]).map((cell) => {
    if (!cell.endsWith(":")) return "";
    return cell.startsWith(":") ? "center" : "right";
  });
  /** @param {string} line @param {boolean} heads @returns {Block} */
  const row = (line, heads) => {
    const found = cells(line);
    return { is: "row", children: aligns.map((align, i) => ({ is: "cell", source: found[i] ?? "", align, heads })) };
  };
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  const head = [row(lines[at], true)];
  const body = lines.slice(at + 2, end).map((line) => row(line, false));
  return [
    {
      is: "table",
      children: [
        { is: "head", children: head },
        { is: "body", children: body },
      ],
    },
    end,
  ];
}

/** The cells of a row; `\|` is a literal bar. @param {string} line */
function cells(line) {
  const found = line
    .trim()
    .replace(/^\|/, "")
    .replace(/\|$/, "")
    .split("|", COLUMNS + 1);
  /** @type {string[]} */
  const out = [];
  let open = false;
  for (const piece of found) {
    if (open) out[out.length - 1] += `|${piece}`;
    else out.push(piece);
    open = piece.endsWith("\\");
    if (open) out[out.length - 1] = out[out.length - 1].slice(0, -1);
  }
  return out.slice(0, COLUMNS).map((cell) => cell.trim());
}
