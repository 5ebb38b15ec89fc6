/** What stands in the middle when there is no conversation: a welcome, or why there can be none. And the help. */

import { h, icon, iconButton } from "./dom.js";
import { hasCommandKey } from "./input.js";

const IDEAS = [
  ["Explain", "Explain how a rainbow comes about, as to a curious ten-year-old."],
  ["Write", "Write a short, friendly e-mail that moves a meeting from Tuesday to Thursday."],
  ["Compare", "Compare bread flour, cake flour and wholemeal flour in a table."],
  ["Code", "Write a Python function that finds all anagrams of a word in a list, with a test."],
];

/** What the model that comes with wgemma can do. */
const SMALL_IDEAS = [
  ["Ask", "Hello! What can you do?"],
  ["Reckon", "What is 27 + 15?"],
  ["Tell", "Tell me a story about a cat called Mila."],
  ["List", "Name three animals."],
];

/** @param {boolean} small whether the model is the one that comes with wgemma @param {(text: string) => void} onIdea */
export function fillWelcome(small, onIdea) {
  const place = document.getElementById("welcome");
  if (!place || place.dataset.small === String(small)) return;
  place.dataset.small = String(small);
  const ideas = (small ? SMALL_IDEAS : IDEAS).map(([name, text]) =>
    h("button", { type: "button", onclick: () => onIdea(text) }, h("strong", {}, name), h("span", {}, text)),
  );
  place.replaceChildren(
    h("img", { src: "icons/icon.svg", alt: "", width: "56", height: "56" }),
    h("h2", {}, "Gemma 4, on your own GPU"),
    h("p", {}, "It runs inside this page. What you write, show and say stays on this computer."),
    small
      ? h(
          "p",
          {},
          "This tiny model is here to try things out. For real work, choose a Gemma 4 above or open its .gguf file.",
        )
      : "",
    h("div", { class: "ideas" }, ...ideas),
  );
}

/**
 * How WebGPU is had, browser by browser; the first whose test fits is the reader's own.
 * @type {[string, RegExp, string[]][]}
 */
const BROWSERS = [
  [
    "Edge",
    /Edg\//,
    ["Update to Edge 113 or newer.", "In edge://settings/system switch on graphics acceleration, then restart Edge."],
  ],
  [
    "Firefox",
    /Firefox\//,
    [
      "Update to Firefox 141 or newer on Windows, 145 on a Mac with Apple silicon.",
      "Elsewhere open about:config, set dom.webgpu.enabled to true, and restart Firefox; or use Chrome.",
    ],
  ],
  [
    "Chrome on Android",
    /Android.*Chrome\//,
    [
      "Update to Chrome 121 or newer, on Android 12 or newer.",
      "If it is new enough, open chrome://flags and enable “Unsafe WebGPU Support”.",
    ],
  ],
  [
    "Chrome or Chromium on Linux",
    /Linux.*Chrome\//,
    [
      "Update to Chrome 144 or newer.",
      "In chrome://settings/system switch on graphics acceleration.",
      "If that is not enough, open chrome://flags, enable “Unsafe WebGPU Support” and “Vulkan”, and restart.",
    ],
  ],
  [
    "Chrome",
    /Chrome\//,
    [
      "Update to Chrome 113 or newer.",
      "In chrome://settings/system switch on graphics acceleration, then restart Chrome.",
      "chrome://gpu says what is wrong.",
    ],
  ],
  [
    "Safari",
    /Safari\//,
    [
      "Update to macOS 26, iOS 26 or iPadOS 26.",
      "On older ones open Settings → Apps → Safari → Advanced → Feature Flags and switch on WebGPU.",
    ],
  ],
];

/** @param {string} reason */
export function fillUnsupported(reason) {
  const own = BROWSERS.find(([, test]) => test.test(navigator.userAgent));
  const others = BROWSERS.filter(
    (browser) => browser !== own && browser[0] !== "Chrome on Android" && browser[0] !== "Chrome or Chromium on Linux",
  );
  const steps = (/** @type {string[]} */ list) => h("ol", {}, ...list.map((step) => h("li", {}, step)));
  const insecure =
    !isSecureContext && "Browsers offer WebGPU only to secure pages: open this one by https, or as http://localhost.";
  document
    .getElementById("unsupported")
    ?.replaceChildren(
      h("h2", {}, "This browser cannot reach your GPU yet"),
      h("p", { role: "alert", "data-testid": "unsupported-reason" }, reason),
      insecure ? h("p", {}, insecure) : "",
      own ? h("section", {}, h("h3", {}, own[0]), steps(own[2])) : "",
      h(
        "details",
        {},
        h("summary", {}, "Other browsers"),
        ...others.flatMap(([name, , list]) => [h("h3", {}, name), steps(list)]),
      ),
      h("p", { class: "muted" }, "Your chats are still here: they can be read, searched and exported."),
    );
}

/** @type {[string, string][]} "Mod" is Ctrl, or the command key */
const KEYS = [
  ["Enter", "Send"],
  ["Shift Enter", "New line"],
  ["Esc", "Stop the answer"],
  ["Mod K", "New chat"],
  ["Mod ,", "Settings"],
  ["/", "Search chats"],
  ["↑", "Edit the last message, when the box is empty"],
  ["?", "This help"],
];

/** @param {string} keys */
function caps(keys) {
  const mod = hasCommandKey ? "⌘" : "Ctrl";
  return keys.split(" ").map((key) => h("kbd", {}, key === "Mod" ? mod : key));
}

/** @param {string} about the model and the machine, in a line */
export function showHelp(about) {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("help"));
  dialog.replaceChildren(
    h(
      "header",
      {},
      h("h2", { id: "help-title" }, "Keys and help"),
      iconButton("close", "Close", { onclick: () => dialog.close() }),
    ),
    h("dl", { class: "keys" }, ...KEYS.flatMap(([keys, text]) => [h("dt", {}, ...caps(keys)), h("dd", {}, text)])),
    h(
      "p",
      {},
      icon("image"),
      "Pictures, sounds, .gguf models, .jsonl examples and exported chats can be dropped anywhere; pictures can be pasted.",
    ),
    h("p", { class: "muted" }, about),
  );
  if (!dialog.open) dialog.showModal();
}
