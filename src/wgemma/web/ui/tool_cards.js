/**
 * A card per tool call, with a box for its result.
 *
 * Nothing is ever run: the user decides, runs the tool or not, and enters the result.
 */

import { h, icon } from "./dom.js";

/**
 * @param {import("./store.js").ToolCall[]} calls
 * @param {{name: string, content: string}[] | undefined} results in the order of the readable calls
 * @param {(results: {name: string, content: string}[]) => void} onAnswer
 */
export function toolCards(calls, results, onAnswer) {
  const readable = calls.filter((call) => !call.error);
  /** @type {HTMLTextAreaElement[]} */
  const boxes = [];
  const form = h("form", { class: "calls" });
  for (const call of calls) {
    const result = results?.[readable.indexOf(call)];
    form.append(
      h(
        "section",
        { class: "call", "data-testid": "tool-call", "aria-label": `Call to ${call.name || "a tool"}` },
        ...card(call, result, boxes),
      ),
    );
  }
  if (boxes.length) {
    form.append(
      h(
        "div",
        { class: "row" },
        h(
          "button",
          { type: "submit", class: "primary", "data-testid": "tool-send" },
          boxes.length > 1 ? "Send results" : "Send result",
        ),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onAnswer(readable.map((call, i) => ({ name: call.name, content: boxes[i].value })));
    });
  }
  return form;
}

/**
 * @param {import("./store.js").ToolCall} call @param {{content: string} | undefined} result
 * @param {HTMLTextAreaElement[]} boxes
 */
function card(call, result, boxes) {
  const title = h("header", {}, icon("tool"), h("strong", {}, call.name || "Unreadable call"));
  if (call.error)
    return [title, h("p", { class: "note error" }, call.error), h("pre", { tabindex: "0" }, call.raw ?? "")];
  const args = h("pre", { tabindex: "0", "aria-label": "Arguments" }, pretty(call.arguments));
  if (result)
    return [
      title,
      args,
      h(
        "pre",
        { class: "result", tabindex: "0", "aria-label": "Result", "data-testid": "tool-result" },
        result.content || "(nothing)",
      ),
    ];
  const box = h("textarea", {
    rows: "2",
    placeholder: "Its result, as text or JSON",
    "aria-label": `Result of ${call.name}`,
    "data-testid": "tool-input",
  });
  boxes.push(box);
  return [title, args, box];
}

/** @param {unknown} value */
function pretty(value) {
  return JSON.stringify(value ?? {}, null, 2).slice(0, 20_000);
}
