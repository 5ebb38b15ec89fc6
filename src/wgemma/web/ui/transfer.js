/**
 * The file format of exported chats. Also reads what `/save` in `wgemma run` writes.
 *
 *   {"format": "wgemma chats", "version": 1, "exported": …,
 *    "chats": [{title, …, messages: [{…, attachments: [{…, data}]}]}]}
 *
 * Files are hostile: every field is checked and copied by name, records get new ids, a message's parent must come before
 * it, media types are those that cannot contain scripts, and everything has a limit.
 *
 * @typedef {import("./store.js").Chat} Chat
 * @typedef {import("./store.js").Message} Message
 * @typedef {import("./store.js").Medium} Medium
 */

import { kindOf } from "./attachments.js";
import { excerpt } from "./format.js";
import { pacer } from "./pace.js";
import { settingsFrom } from "./settings.js";
import { freshId } from "./store.js";

const FORMAT = "wgemma chats";
const COMMAND_LINE = "wgemma chat";
const VERSION = 1;
export const LARGEST_FILE = 256 << 20;
const LONGEST_TEXT = 1 << 20;
const MOST_MESSAGES = 20_000; // per chat
const DEEPEST = 32; // nesting of a call's arguments

/**
 * @param {{chats: Chat[], messages: Message[], media: Medium[]}[]} records one per chat
 * @returns {Promise<Blob>}
 */
export async function packed(records) {
  const chats = [];
  for (const {
    chats: [chat],
    messages,
    media,
  } of records) {
    const data = new Map();
    for (const { id, blob } of media) data.set(id, await base64(blob));
    const said = messages
      .sort((a, b) => a.created - b.created)
      .map(({ chat: _, ...message }) => ({
        ...message,
        ...(message.attachments && {
          attachments: message.attachments.map(({ id, ...facts }) => ({ ...facts, data: data.get(id) ?? "" })),
        }),
      }));
    const { id: _, ...facts } = chat;
    chats.push({ ...facts, messages: parentsFirst(said) });
  }
  const text = JSON.stringify({ format: FORMAT, version: VERSION, exported: new Date().toISOString(), chats }, null, 1);
  return new Blob([text], { type: "application/json" });
}

/**
 * Sorts messages so that parents come first.
 * @template {{id: string, parent: string | null}} T @param {T[]} messages @returns {T[]}
 */
function parentsFirst(messages) {
  /** @type {Map<string | null, T[]>} */
  const after = new Map();
  const known = new Set(messages.map((message) => message.id));
  for (const message of messages) {
    const parent = message.parent !== null && known.has(message.parent) ? message.parent : null;
    const beside = after.get(parent);
    if (beside) beside.push(message);
    else after.set(parent, [message]);
  }
  const out = [...(after.get(null) ?? [])];
  for (const message of out) out.push(...(after.get(message.id) ?? [])); // grows during the loop
  return out;
}

/** @param {Blob} blob */
async function base64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text);
}

/**
 * Reads chats from a file, with new ids. `left` counts what had to be skipped.
 * @param {Blob} file
 * @returns {Promise<{chats: Chat[], messages: Message[], media: Medium[], left: number}>}
 */
export async function unpacked(file) {
  if (file.size > LARGEST_FILE) throw new Error("This file is too large to hold chats (more than 256 MB).");
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch {
    throw new Error("This file is not JSON. Choose one that was exported here, or saved with /save in `wgemma run`.");
  }
  const out = {
    chats: /** @type {Chat[]} */ ([]),
    messages: /** @type {Message[]} */ ([]),
    media: /** @type {Medium[]} */ ([]),
    left: 0,
  };
  const format = value?.format;
  if (format !== FORMAT && format !== COMMAND_LINE) {
    throw new Error(
      "This file has no chats. Choose one that was exported here, or saved with /save in `wgemma run`.",
    );
  }
  if (value.version !== VERSION) {
    const found = excerpt(JSON.stringify(value.version) ?? "none", 20);
    throw new Error(
      `This file has version ${found}; this page reads version ${VERSION}. A newer wgemma may read it.`,
    );
  }
  const chats = format === COMMAND_LINE ? [fromCommandLine(value)] : value.chats;
  if (!Array.isArray(chats)) throw new Error("This file is damaged: its list of chats is missing.");
  const pause = pacer();
  for (const chat of chats) await readChat(chat, out, pause);
  return out;
}

/**
 * @param {any} raw @param {{chats: Chat[], messages: Message[], media: Medium[], left: number}} out
 * @param {() => Promise<void>} pause
 */
async function readChat(raw, out, pause) {
  if (!raw || typeof raw !== "object" || !Array.isArray(raw.messages)) {
    out.left++;
    return;
  }
  const id = freshId();
  /** @type {Map<string, string>} ids in the file → new ids */
  const names = new Map();
  let last = null;
  for (const entry of raw.messages.slice(0, MOST_MESSAGES)) {
    await pause();
    const message = readMessage(entry, id, names, out);
    if (!message) out.left++;
    else {
      out.messages.push(message);
      last = message.id;
    }
  }
  out.left += Math.max(0, raw.messages.length - MOST_MESSAGES);
  const created = time(raw.created);
  out.chats.push({
    id,
    title: text(raw.title, 200).replace(/\s+/g, " ").trim() || "Imported chat",
    named: raw.named === true,
    created,
    updated: Math.max(created, time(raw.updated)),
    head: names.get(raw.head) ?? last,
    settings: settingsFrom(raw.settings),
  });
}

/**
 * @param {any} raw @param {string} chat @param {Map<string, string>} names
 * @param {{media: Medium[], left: number}} out @returns {Message | null}
 */
function readMessage(raw, chat, names, out) {
  if (!raw || typeof raw !== "object" || !["user", "assistant", "tool"].includes(raw.role)) return null;
  const parent = raw.parent === null || raw.parent === undefined ? null : names.get(raw.parent);
  if (parent === undefined) return null; // no such parent
  const id = freshId();
  if (typeof raw.id === "string") names.set(raw.id, id);
  /** @type {Message} */
  const message = { id, chat, parent, role: raw.role, created: time(raw.created), content: text(raw.content) };
  if (raw.thinking) message.thinking = text(raw.thinking);
  for (const name of /** @type {const} */ (["model", "finish", "error"]))
    if (raw[name]) message[name] = text(raw[name], 500);
  if (message.role === "assistant") message.finish ??= "stop";
  if (positive(raw.thought)) message.thought = raw.thought;
  if (raw.stats && typeof raw.stats === "object") message.stats = numbers(raw.stats);
  if (Array.isArray(raw.calls)) message.calls = raw.calls.slice(0, 100).map(readCall).filter(isSomething);
  if (Array.isArray(raw.results)) {
    message.results = raw.results
      .slice(0, 100)
      .map((/** @type {any} */ r) => ({ name: text(r?.name, 200), content: text(r?.content) }));
  }
  if (Array.isArray(raw.attachments)) {
    message.attachments = raw.attachments
      .slice(0, 50)
      .map((/** @type {any} */ a) => readMedium(a, chat, out))
      .filter(isSomething);
  }
  return message;
}

/** @template T @param {T | null} value @returns {value is T} */
const isSomething = (value) => value !== null;

/** @param {any} raw @returns {import("./store.js").ToolCall | null} */
function readCall(raw) {
  if (!raw || typeof raw !== "object") return null;
  const args =
    raw.arguments && typeof raw.arguments === "object" && !Array.isArray(raw.arguments)
      ? shallow(raw.arguments, 0)
      : {};
  const call = { name: text(raw.name, 200), arguments: args };
  return raw.error ? { ...call, error: text(raw.error, 500), raw: text(raw.raw, 10_000) } : call;
}

/** A copy of limited depth. @param {any} value @param {number} depth @returns {any} */
function shallow(value, depth) {
  if (typeof value === "string") return text(value);
  if (!value || typeof value !== "object") return value;
  if (depth >= DEEPEST) return null;
  if (Array.isArray(value)) return value.slice(0, 10_000).map((item) => shallow(item, depth + 1));
  const entries = Object.entries(value)
    .slice(0, 1000)
    .filter(([key]) => key !== "__proto__");
  return Object.fromEntries(entries.map(([key, item]) => [key.slice(0, 500), shallow(item, depth + 1)]));
}

/**
 * @param {any} raw @param {string} chat @param {{media: Medium[], left: number}} out
 * @returns {import("./store.js").Attachment | null}
 */
function readMedium(raw, chat, out) {
  const type = text(raw?.type, 100).toLowerCase();
  const kind = kindOf(type);
  try {
    if (!kind || typeof raw.data !== "string" || !raw.data) throw new Error("unknown type");
    const bytes = Uint8Array.from(atob(raw.data), (char) => char.charCodeAt(0));
    const id = freshId();
    out.media.push({ id, chat, blob: new Blob([bytes], { type }) });
    return { id, kind, name: text(raw.name, 200) || kind, type, size: bytes.length };
  } catch {
    out.left++;
    return null;
  }
}

/** @param {unknown} value @param {number} [longest] */
const text = (value, longest = LONGEST_TEXT) => (typeof value === "string" ? value.slice(0, longest) : "");

/** @param {unknown} value @returns {value is number} */
const positive = (value) => typeof value === "number" && Number.isFinite(value) && value >= 0;

/** @param {unknown} value */
const time = (value) => (positive(value) && value < 8e15 ? value : Date.now());

/** @param {any} raw */
function numbers(raw) {
  const tokens = ["prompt", "reused", "generated", "context", "dropped", "newlyDropped"];
  const names = [...tokens, "firstToken", "tokensPerSecond"];
  return Object.fromEntries(names.filter((name) => positive(raw[name])).map((name) => [name, raw[name]]));
}

/** Converts what `/save` wrote. Paths of media mean nothing in a page. @param {any} value */
function fromCommandLine(value) {
  /** @type {any[]} */
  const messages = [];
  const put = (/** @type {any} */ message) =>
    messages.push({
      id: String(messages.length),
      parent: messages.length ? String(messages.length - 1) : null,
      ...message,
    });
  for (const said of Array.isArray(value.messages) ? value.messages.slice(0, MOST_MESSAGES) : []) {
    const content = spoken(said?.content);
    if (said?.role === "tool") {
      const result = { name: said.name, content };
      if (messages.at(-1)?.role === "tool") messages.at(-1).results.push(result);
      else put({ role: "tool", results: [result] });
    } else {
      const calls = Array.isArray(said?.tool_calls)
        ? said.tool_calls.map((/** @type {any} */ call) => call?.function)
        : undefined;
      put({ role: said?.role, content, thinking: said?.thinking, calls, model: value.model });
    }
  }
  const { temperature, top_k, top_p, min_p, repeat_penalty, seed, max_tokens } = value.settings?.parameters ?? {};
  const numbers = {
    temperature,
    topK: top_k,
    topP: top_p,
    minP: min_p,
    repeatPenalty: repeat_penalty,
    seed,
    maxTokens: max_tokens,
  };
  const first = messages.find((message) => message.role === "user")?.content ?? "";
  return {
    title: excerpt(first),
    messages,
    settings: { ...numbers, system: value.system, think: Boolean(value.settings?.think) },
  };
}

/** @param {any} content */
function spoken(content) {
  if (!Array.isArray(content)) return content;
  const words = content.map((part) =>
    part?.type === "text"
      ? text(part.text)
      : `[${text(part?.type, 20)} ${text(part?.path, 500).split(/[\\/]/).at(-1)}]`,
  );
  return words.join(" ");
}
