/** The welcome page, the page for browsers without WebGPU, and the help. */

import { h, icon, iconButton } from "./dom.js";
import { hasCommandKey } from "./input.js";

const IDEAS = [
  ["Explain", "Explain to a curious ten-year-old how rainbows form."],
  ["Write", "Write a short, friendly e-mail that moves a meeting from Tuesday to Thursday."],
  ["Compare", "Compare bread flour, cake flour and wholemeal flour in a table."],
  ["Code", "Write a Python function that finds all anagrams of a word in a list, with a test."],
];

/** Prompts that the embedded model can answer. */
const SMALL_IDEAS = [
  ["Ask", "Hello! What can you do?"],
  ["Calculate", "What is 27 + 15?"],
  ["Tell", "Tell me a story about a cat called Mila."],
  ["List", "Name three animals."],
];

/** @param {boolean} small whether the model is the embedded one @param {(text: string) => void} onIdea */
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
    h("p", {}, "It runs inside this page. What you write, show or say stays on this computer."),
    small
      ? h(
          "p",
          {},
          "This tiny model is only for trying things out. For real work, choose a Gemma 4 above or open its .gguf file.",
        )
      : "",
    h("div", { class: "ideas" }, ...ideas),
  );
}

/**
 * How to get WebGPU, by browser; the first that matches is the user's.
 * @type {[string, RegExp, string[]][]}
 */
const BROWSERS = [
  [
    "Edge",
    /Edg\//,
    ["Update to Edge 113 or newer.", "In edge://settings/system, turn on graphics acceleration, then restart Edge."],
  ],
  [
    "Firefox",
    /Firefox\//,
    [
      "Update to Firefox 141 or newer on Windows, 145 on a Mac with Apple silicon.",
      "Elsewhere, open about:config, set dom.webgpu.enabled to true, and restart Firefox; or use Chrome.",
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
      "In chrome://settings/system, turn on graphics acceleration.",
      "If that is not enough, open chrome://flags, enable “Unsafe WebGPU Support” and “Vulkan”, and restart.",
    ],
  ],
  [
    "Chrome",
    /Chrome\//,
    [
      "Update to Chrome 113 or newer.",
      "In chrome://settings/system, turn on graphics acceleration, then restart Chrome.",
      "See chrome://gpu for what is wrong.",
    ],
  ],
  [
    "Safari",
    /Safari\//,
    [
      "Update to macOS 26, iOS 26 or iPadOS 26.",
      "On older versions, open Settings → Apps → Safari → Advanced → Feature Flags and turn on WebGPU.",
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
    !isSecureContext && "Browsers offer WebGPU only on secure pages: open this one with https, or at http://localhost.";
  document
    .getElementById("unsupported")
    ?.replaceChildren(
      h("h2", {}, "This browser cannot use your GPU yet"),
      h("p", { role: "alert", "data-testid": "unsupported-reason" }, reason),
      insecure ? h("p", {}, insecure) : "",
      own ? h("section", {}, h("h3", {}, own[0]), steps(own[2])) : "",
      h(
        "details",
        {},
        h("summary", {}, "Other browsers"),
        ...others.flatMap(([name, , list]) => [h("h3", {}, name), steps(list)]),
      ),
      h("p", { class: "muted" }, "Your chats are still here: you can read, search and export them."),
    );
}

/** @type {[string, string][]} "Mod" is Ctrl or ⌘ */
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

/** @param {string} about one line about the model and the GPU */
export function showHelp(about) {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("help"));
  dialog.replaceChildren(
    h(
      "header",
      {},
      h("h2", { id: "help-title" }, "Shortcuts and help"),
      iconButton("close", "Close", { onclick: () => dialog.close() }),
    ),
    h("dl", { class: "keys" }, ...KEYS.flatMap(([keys, text]) => [h("dt", {}, ...caps(keys)), h("dd", {}, text)])),
    h(
      "p",
      {},
      icon("image"),
      "Drop pictures, sounds, .gguf models, .jsonl examples and exported chats anywhere. Pictures can be pasted, too.",
    ),
    h("p", { class: "muted" }, about),
  );
  if (!dialog.open) dialog.showModal();
}
