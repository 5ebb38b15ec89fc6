/** Errors for the user: the sentence, and a button that helps. */

/** The button for a code: its label, and what it does. */
const NEXT = new Map([
  ["device-lost", { label: "Load again", deed: "reload" }],
  ["worker", { label: "Load again", deed: "reload" }],
  ["network", { label: "Try again", deed: "reload" }],
  ["quota", { label: "Load without keeping it", deed: "unkept" }],
  ["out-of-memory", { label: "Settings", deed: "settings" }],
  ["settings", { label: "Settings", deed: "settings" }],
]);

/** Advice that the message itself does not give. */
const HINTS = new Map([
  ["device-lost", "The chat is kept."],
  ["out-of-memory", "Use a smaller model or a shorter context, or close other tabs that use the GPU."],
  ["worker", "The chat is kept."],
]);

/** @param {unknown} error @returns {{text: string, code: string, next?: {label: string, deed: string}}} */
export function explained(error) {
  const { code: given, message } = /** @type {{code?: unknown, message?: string}} */ (error ?? {});
  const code = typeof given === "string" ? given : "";
  const said = String(message ?? error ?? "").trim() || "Something went wrong.";
  const sentence = /[.!?…]$/.test(said) ? said : `${said}.`;
  const hint = HINTS.get(code) ?? "";
  return { text: sentence.includes(hint) ? sentence : `${sentence} ${hint}`, code, next: NEXT.get(code) };
}

/** Whether it was stopped on purpose. @param {unknown} error */
export const isAbort = (error) => error instanceof Error && error.name === "AbortError";
