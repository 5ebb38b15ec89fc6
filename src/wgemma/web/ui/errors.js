/** What went wrong, for people: the sentence, and what can be done about it here and now. */

/**
 * What a code lets one do next: a button's label and the name of the deed.
 * @type {Record<string, {label: string, deed: string}>}
 */
const NEXT = {
  "device-lost": { label: "Load again", deed: "reload" },
  worker: { label: "Load again", deed: "reload" },
  network: { label: "Try again", deed: "reload" },
  quota: { label: "Load without keeping it", deed: "unkept" },
  "out-of-memory": { label: "Settings", deed: "settings" },
  settings: { label: "Settings", deed: "settings" },
};

/** What helps where the sentence alone does not say. @type {Record<string, string>} */
const HINTS = {
  "device-lost": "The chat is kept.",
  "out-of-memory": "A smaller model, a shorter context, or closing other tabs that use the GPU helps.",
  worker: "The chat is kept.",
};

/** @param {unknown} error @returns {{text: string, code: string, next?: {label: string, deed: string}}} */
export function explained(error) {
  const { code: given, message } = /** @type {{code?: unknown, message?: string}} */ (error ?? {});
  const code = typeof given === "string" ? given : "";
  const said = String(message ?? error ?? "").trim() || "Something went wrong.";
  const sentence = /[.!?…]$/.test(said) ? said : `${said}.`;
  const hint = HINTS[code] && !sentence.includes(HINTS[code]) ? ` ${HINTS[code]}` : "";
  return { text: sentence + hint, code, next: NEXT[code] };
}

/** Whether somebody stopped it on purpose. @param {unknown} error */
export const isAbort = (error) => error instanceof Error && error.name === "AbortError";
