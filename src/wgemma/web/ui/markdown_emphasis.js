/**
 * Pairs the * _ ~ of a paragraph by CommonMark's rules. Pure, in linear time.
 *
 * @typedef {import("./markdown_inline.js").Inline} Inline
 * @typedef {{mark: string, count: number, opens: boolean, closes: boolean, starts: string[], ends: string[]}} Run
 *   a run of marks; those that were paired are in `ends` and `starts`
 * @typedef {Inline | Run | {bracket: string}} Item
 */

/** Maximum nesting. */
export const DEPTH = 12;

/**
 * Pairs the runs and builds the tree.
 * @param {Item[]} items @param {boolean} open @returns {Inline[]}
 */
export function emphasised(items, open) {
  pair(items);
  if (open) closeBold(items);
  /** @type {{tag: string, children: Inline[]}[]} */
  const stack = [{ tag: "", children: [] }];
  const put = (/** @type {Inline} */ node) => stack[stack.length - 1].children.push(node);
  for (const item of items) {
    if ("is" in item) put(item);
    else if ("bracket" in item) put({ is: "text", text: item.bracket });
    else {
      for (const tag of item.ends) leave(tag);
      if (item.count) put({ is: "text", text: item.mark.repeat(item.count) });
      for (const tag of item.starts.reverse()) enter(tag);
    }
  }
  while (stack.length > 1) leave(stack[stack.length - 1].tag);
  return joined(stack[0].children);

  /** Beyond the maximum depth, content goes to the parent. @param {string} tag */
  function enter(tag) {
    stack.push({ tag, children: stack.length > DEPTH ? stack[stack.length - 1].children : [] });
  }

  /** @param {string} tag */
  function leave(tag) {
    const top = stack.pop();
    if (top && stack.length <= DEPTH) put({ is: /** @type {"em"} */ (tag), children: joined(top.children) });
  }
}

/** @param {Item[]} items */
function pair(items) {
  /** @type {Run[]} runs that can still open */
  const openers = [];
  /** @type {Map<string, number>} no opener of that kind below this index */
  const bottoms = new Map();
  for (const run of items) {
    if (!("mark" in run)) continue;
    while (run.closes && run.count) {
      const kind = `${run.mark}${run.opens}${run.count % 3}`;
      const bottom = bottoms.get(kind) ?? 0;
      let i = openers.length - 1;
      while (i >= bottom && !matches(openers[i], run)) i--;
      if (i < bottom) {
        bottoms.set(kind, openers.length);
        break;
      }
      const opener = openers[i];
      const used = run.count >= 2 && opener.count >= 2 ? 2 : 1;
      const tag = run.mark === "~" ? "del" : used === 2 ? "strong" : "em";
      opener.starts.push(tag);
      run.ends.push(tag);
      opener.count -= used;
      run.count -= used;
      openers.length = opener.count ? i + 1 : i;
      for (const [key, value] of bottoms) if (value > openers.length) bottoms.set(key, openers.length);
    }
    if (run.opens && run.count) openers.push(run);
  }
}

/** @param {Run} opener @param {Run} closer */
function matches(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  const either = opener.closes || closer.opens;
  const sum = opener.count + closer.count;
  return !either || sum % 3 !== 0 || (opener.count % 3 === 0 && closer.count % 3 === 0);
}

/** Closes bold at the end of a text that is still growing. @param {Item[]} items */
function closeBold(items) {
  for (const run of items) {
    if (
      "mark" in run &&
      run.mark === "*" &&
      run.opens &&
      run.count === 2 &&
      !run.starts.length &&
      run !== items.at(-1)
    ) {
      run.starts.push("strong");
      run.count = 0;
    }
  }
}

/** Merges adjacent texts, so that a growing text is updated in place. @param {Inline[]} nodes */
export function joined(nodes) {
  /** @type {Inline[]} */
  const out = [];
  for (const node of nodes) {
    const last = out.at(-1);
    if (last?.is === "text" && node.is === "text") out[out.length - 1] = { is: "text", text: last.text + node.text };
    else out.push(node);
  }
  return out;
}
