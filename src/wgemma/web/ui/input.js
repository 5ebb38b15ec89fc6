/** Global input: keyboard shortcuts, dropped files and picked files. */

import { part } from "./dom.js";

/** Whether shortcuts use ⌘ instead of Ctrl. */
export const hasCommandKey = /Mac|iPhone|iPad/.test(navigator.platform);

/**
 * `editLast` returns whether there was something to edit.
 * @param {{stop: () => void, newChat: () => void, settings: () => void, search: () => void, help: () => void,
 *   editLast: () => boolean}} deeds
 */
export function listenToKeys(deeds) {
  addEventListener("keydown", (event) => {
    const mod = hasCommandKey ? event.metaKey : event.ctrlKey;
    const target = /** @type {HTMLElement} */ (event.target);
    const typing = target.matches?.("input, textarea, select");
    if (mod && event.key.toLowerCase() === "k") take(deeds.newChat);
    else if (mod && event.key === ",") take(deeds.settings);
    else if (document.querySelector("dialog[open]")) return;
    else if (event.key === "Escape") deeds.stop();
    else if (event.key === "/" && !typing && !mod) take(deeds.search);
    else if (event.key === "?" && !typing) take(deeds.help);
    else if (event.key === "ArrowUp" && target.matches("#prompt:placeholder-shown") && deeds.editLast())
      event.preventDefault();

    /** @param {() => void} deed */
    function take(deed) {
      event.preventDefault();
      deed();
    }
  });
}

/** @param {(files: File[]) => void} take */
export function listenToDrops(take) {
  const sheet = /** @type {HTMLElement} */ (document.getElementById("drop"));
  const holdsFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    sheet.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) sheet.hidden = true;
  });
  addEventListener("drop", (event) => {
    sheet.hidden = true;
    if (!holdsFiles(event)) return;
    event.preventDefault();
    take([...(event.dataTransfer?.files ?? [])]);
  });
}

/**
 * Takes files from an <input>, which is cleared so that the same file can be picked again.
 * @param {"pick-file" | "adapter-file" | "finetune-file" | "bench-file" | "import"} name
 * @param {(files: File[]) => void} take
 */
export function listenToFiles(name, take) {
  const input = part(name);
  input.addEventListener("change", () => {
    take([...(input.files ?? [])]);
    input.value = "";
  });
}
