/**
 * Chats, messages and media in IndexedDB, or in this tab's memory if the browser refuses.
 *
 * Each message is its own record, so saving a growing answer does not rewrite the chat. A chat is a tree: each message
 * names its parent, and `head` is the last message of the branch on the page.
 *
 * @typedef {{id: string, title: string, named: boolean, created: number, updated: number, head: string | null,
 *   settings: import("./settings.js").Settings}} Chat
 *
 * @typedef {{id: string, chat: string, parent: string | null, role: "user"|"assistant"|"tool", created: number,
 *   content: string, thinking?: string, thought?: number, attachments?: Attachment[], calls?: ToolCall[],
 *   results?: {name: string, content: string}[], model?: string, finish?: string, error?: string,
 *   stats?: Stats}} Message  a "tool" message has the results of all calls in its parent
 *
 * @typedef {{id: string, kind: "image"|"audio", name: string, type: string, size: number}} Attachment
 * @typedef {{name: string, arguments: any, error?: string, raw?: string}} ToolCall
 * @typedef {{prompt?: number, reused?: number, generated?: number, firstToken?: number, tokensPerSecond?: number,
 *   context?: number, dropped?: number, newlyDropped?: number}} Stats  tokens; seconds to the first one; messages the
 *   model no longer sees, and how many of them the answer before this one still had
 * @typedef {{id: string, chat: string, blob: Blob}} Medium
 * @typedef {{chats: Chat, messages: Message, media: Medium}} Records
 */

const NAME = "wgemma";
const VERSION = 1;
const BATCH = 200; // records read or written at once; more would block the page

/** @returns {Promise<Store>} */
export async function openStore() {
  try {
    return new Store(await open());
  } catch (error) {
    return new Store(null, error instanceof Error ? error.message : String(error));
  }
}

/** @returns {Promise<IDBDatabase>} */
function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("chats", { keyPath: "id" });
      for (const name of ["messages", "media"]) {
        request.result.createObjectStore(name, { keyPath: "id" }).createIndex("chat", "chat");
      }
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab has an older version of the chats open; close it"));
  });
}

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

export class Store {
  /** @param {IDBDatabase | null} database @param {string} [reason] why there is none */
  constructor(database, reason = "") {
    this.database = database;
    this.reason = reason;
    /** @type {Record<keyof Records, Map<string, {id: string, chat?: string}>>} */
    this.memory = { chats: new Map(), messages: new Map(), media: new Map() };
  }

  /** Whether what is saved outlives the tab. */
  get lasting() {
    return this.database !== null;
  }

  /** What to tell the user if not. */
  get sentence() {
    const why = `This browser does not let the page store anything (${this.reason}).`;
    return `${why} Chats last until this tab is closed: export what you want to keep.`;
  }

  /** @template {keyof Records} N @param {N} name @param {string} id @returns {Promise<Records[N] | undefined>} */
  async get(name, id) {
    if (!this.database) return /** @type {Records[N] | undefined} */ (this.memory[name].get(id));
    return done(this.database.transaction(name).objectStore(name).get(id));
  }

  /**
   * All records, or those of one chat.
   * @template {keyof Records} N @param {N} name @param {string} [chat] @returns {Promise<Records[N][]>}
   */
  async all(name, chat) {
    if (!this.database) {
      const found = [...this.memory[name].values()].filter((record) => chat === undefined || record.chat === chat);
      return /** @type {Records[N][]} */ (found);
    }
    const records = this.database.transaction(name).objectStore(name);
    const source = chat === undefined ? records : records.index("chat");
    const keys = await done(source.getAllKeys(chat));
    if (keys.length <= BATCH) return done(source.getAll(chat));
    const found = [];
    for (let i = 0; i < keys.length; i += BATCH) {
      found.push(...(await Promise.all(keys.slice(i, i + BATCH).map((key) => done(records.get(key))))));
    }
    return found;
  }

  /**
   * Writes records, all or none.
   * @param {{chats?: Chat[], messages?: Message[], media?: Medium[]}} records
   */
  async put(records) {
    const { database } = this;
    const lists = /** @type {[keyof Records, {id: string}[]][]} */ (Object.entries(records));
    if (!database) {
      for (const [name, list] of lists) for (const r of list) this.memory[name].set(r.id, structuredClone(r));
      return;
    }
    const transaction = database.transaction(Object.keys(records), "readwrite");
    const finished = settled(transaction);
    try {
      for (const [name, list] of lists) {
        const store = transaction.objectStore(name);
        for (const [i, record] of list.entries()) {
          const request = store.put(record);
          if (i % BATCH === BATCH - 1) await done(request);
        }
      }
      transaction.commit(); // now, and not when the page has seen all of it: it may be about to reload
    } catch (error) {
      transaction.abort();
      await finished.catch(() => {});
      throw error;
    }
    await finished;
  }

  /**
   * A chat with its messages and media.
   * @param {string} id @returns {Promise<{chats: Chat[], messages: Message[], media: Medium[]}>}
   */
  async whole(id) {
    const chat = await this.get("chats", id);
    return { chats: chat ? [chat] : [], messages: await this.all("messages", id), media: await this.all("media", id) };
  }

  /** Deletes a chat with its messages and media. @param {string} id */
  async remove(id) {
    if (!this.database) {
      this.memory.chats.delete(id);
      for (const records of [this.memory.messages, this.memory.media]) {
        for (const [key, record] of records) if (record.chat === id) records.delete(key);
      }
      return;
    }
    const transaction = this.database.transaction(["chats", "messages", "media"], "readwrite");
    transaction.objectStore("chats").delete(id);
    for (const name of ["messages", "media"]) {
      const records = transaction.objectStore(name);
      for (const key of await done(records.index("chat").getAllKeys(id))) records.delete(key);
    }
    await settled(transaction);
  }

  /**
   * Full-text search: chat → the text around the words, or "" for a match in the title.
   * @param {string} words @returns {Promise<Map<string, string>>}
   */
  async search(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = new Map();
    const has = (/** @type {string} */ text) => wanted.every((word) => text.includes(word));
    for (const chat of await this.all("chats")) if (has(chat.title.toLowerCase())) found.set(chat.id, "");
    for (const message of await this.all("messages")) {
      const text = message.content ?? "";
      const lower = text.toLowerCase();
      if (found.get(message.chat) || !has(lower)) continue;
      const at = Math.max(0, lower.indexOf(wanted[0]) - 30);
      found.set(message.chat, `${at ? "…" : ""}${text.slice(at, at + 120).replace(/\s+/g, " ")}`);
    }
    return found;
  }
}

/** @param {IDBTransaction} transaction @returns {Promise<void>} */
function settled(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("the browser did not store it"));
  });
}

export const freshId = () => crypto.randomUUID();

/** Why something could not be saved, and what to do. @param {unknown} error */
export function storageSentence(error) {
  if (error instanceof DOMException && error.name === "QuotaExceededError") {
    const what = "The browser's storage for this page is full, so the chat is not being saved.";
    return `${what} Export it, then delete old chats or saved models.`;
  }
  const reason = error instanceof Error ? error.message : String(error);
  return `The browser did not save the chat (${reason}). Export it before you close this tab.`;
}
