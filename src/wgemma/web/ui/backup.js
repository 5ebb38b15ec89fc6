/** Export and import of chats, as the user sees it. The file format is in transfer.js. */

import { announce, h } from "./dom.js";
import { excerpt, plural } from "./format.js";
import { toast } from "./notices.js";
import { storageSentence } from "./store.js";
import { packed, unpacked } from "./transfer.js";

/** @typedef {Awaited<ReturnType<import("./store.js").Store["whole"]>>} Records */

/** Downloads chats as a file. @param {Records[]} records one per chat */
export async function exportChats(records) {
  if (!records.length) {
    toast("There are no chats to export yet.");
    return;
  }
  const title = records.length === 1 ? excerpt(records[0].chats[0].title, 40) : "wgemma chats";
  const name = title.replace(/[^\p{L}\p{N} _-]/gu, "").trim() || "chat";
  const address = URL.createObjectURL(await packed(records));
  h("a", { href: address, download: `${name} ${new Date().toISOString().slice(0, 10)}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  announce(`${plural(records.length, "chat")} exported.`);
}

/**
 * Saves the chats of a file.
 * @param {File} file @param {import("./store.js").Store} store @returns {Promise<import("./store.js").Chat[]>}
 */
export async function importChats(file, store) {
  try {
    const { left, ...records } = await unpacked(file);
    await store.put(records);
    const rest = left ? ` ${plural(left, "piece")} could not be read and ${left === 1 ? "was" : "were"} skipped.` : "";
    toast(`${plural(records.chats.length, "chat")} imported.${rest}`);
    return records.chats;
  } catch (error) {
    toast(error instanceof DOMException ? storageSentence(error) : /** @type {Error} */ (error).message);
    return [];
  }
}
