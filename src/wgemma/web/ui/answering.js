/**
 * One answer from start to end: fills the message, saves it, and records how it ended.
 *
 * Nothing is lost: it is saved every second, and when the page closes.
 *
 * @typedef {import("./store.js").Message} Message
 * @typedef {import("./store.js").Stats} Stats
 * @typedef {import("../wgemma").Part} Part
 */

import { explained, isAbort } from "./errors.js";
import { remembered, rememberedJson } from "./remembered.js";

const SAVE_EVERY = 1000; // milliseconds
const UNFINISHED = "wgemma.unfinished";

export class Answering {
  /**
   * @param {Message} message still empty
   * @param {Stats | undefined} before of the answer before this one
   * @param {{grown: (part: Part) => void, counted: (stats: Stats) => void, save: () => Promise<void>}} deeds
   */
  constructor(message, before, deeds) {
    this.message = message;
    this.before = before;
    this.deeds = deeds;
    this.stop = new AbortController();
    this.began = performance.now();
    this.saved = this.began;
    this.tokens = 0;
    /** @type {Stats} */
    this.stats = {};
  }

  /**
   * Runs to the end and never throws.
   * @param {(signal: AbortSignal) => Promise<AsyncIterable<Part>>} open
   */
  async run(open) {
    const { message } = this;
    const leave = () => keepUnfinished(message);
    addEventListener("pagehide", leave);
    try {
      const parts = await open(this.stop.signal);
      this.began = performance.now(); // without the time to load the model
      for await (const part of parts) this.#take(part);
      message.finish ??= this.stop.signal.aborted ? "cancelled" : "stop";
    } catch (error) {
      const stopped = this.stop.signal.aborted || isAbort(error);
      message.finish = stopped ? "cancelled" : "error";
      if (!stopped) message.error = explained(error).text;
      this.error = stopped ? undefined : error;
    } finally {
      removeEventListener("pagehide", leave);
      this.#thoughtOver();
      message.stats = this.stats;
      await this.deeds.save();
      dropUnfinished(message.id);
    }
  }

  /** @param {Part} part */
  #take(part) {
    const { message, stats } = this;
    const now = performance.now();
    if (part.text || part.toolCall) {
      if (!this.tokens++) this.first = now;
    }
    if (part.kind === "thinking") message.thinking = (message.thinking ?? "") + part.text;
    else {
      this.#thoughtOver();
      if (part.kind === "content") message.content += part.text ?? "";
      else if (part.toolCall) (message.calls ??= []).push(callOf(part.toolCall));
    }
    if (part.finishReason) message.finish = part.finishReason;
    if (part.usage) {
      Object.assign(stats, part.usage);
      stats.newlyDropped = Math.max(0, part.usage.dropped - (this.before?.dropped ?? 0));
    }
    const seconds = (now - (this.first ?? now)) / 1000;
    stats.firstToken = (part.timing?.firstToken ?? (this.first ?? now) - this.began) / 1000;
    stats.tokensPerSecond = part.timing?.tokensPerSecond ?? (seconds > 0.2 ? (this.tokens - 1) / seconds : undefined);
    this.deeds.grown(part);
    this.deeds.counted(stats);
    if (now - this.saved > SAVE_EVERY) {
      this.saved = now;
      this.deeds.save();
    }
  }

  #thoughtOver() {
    const { message } = this;
    if (message.thinking && message.thought === undefined)
      message.thought = (performance.now() - (this.first ?? this.began)) / 1000;
  }
}

/** @param {import("../wgemma").ToolCall} call @returns {import("./store.js").ToolCall} */
function callOf({ name, arguments: args, error, raw }) {
  return error ? { name: name ?? "", arguments: {}, error, raw } : { name, arguments: args ?? {} };
}

// -- when the page closes in the middle: only local storage is sure to be written

/** @param {Message} message */
function keepUnfinished(message) {
  remembered(UNFINISHED, JSON.stringify(message));
}

/** @param {string} id */
function dropUnfinished(id) {
  if (unfinished()?.id === id) remembered(UNFINISHED, null);
}

/** @returns {Message | null} */
function unfinished() {
  const message = rememberedJson(UNFINISHED);
  return typeof message?.id === "string" && typeof message.content === "string" ? message : null;
}

/** Saves the answer that was cut off when the page closed. @param {import("./store.js").Store} store */
export async function recover(store) {
  const message = unfinished();
  if (!message) return;
  const kept = await store.get("messages", message.id).catch(() => undefined);
  if (kept && !kept.finish)
    await store.put({
      messages: [{ ...kept, content: message.content, thinking: message.thinking, finish: "interrupted" }],
    });
  remembered(UNFINISHED, null);
}
