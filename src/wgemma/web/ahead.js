/**
 * Read-ahead: a source (see sources.js) over a slow one, a web server's or a picked file's.
 *
 * The loader says what it will read, in order (`expect`). Requests for that are sent ahead, several in flight, adjacent
 * spans merged. Table rows, which cannot be predicted far ahead, go through an LRU cache.
 */

/**
 * @typedef {import("./file.js").FileSource} FileSource
 * @typedef {import("./http.js").WebSource} WebSource
 * @typedef {import("./wgemma").ErrorCode} ErrorCode
 */

import { WgemmaError } from "./trouble.js";

const FETCHERS = 4; // Workers
const AT_ONCE = 6; // requests in flight: as many as browsers open connections to one server
const WINDOW = 384 << 20; // bytes in flight, or here and not yet read
const REQUEST = 16 << 20; // adjacent spans are merged up to this size
const GAP = 1 << 16; // spans this close are adjacent: the gap is fetched, too
const MUCH = 64 << 20; // bytes that are worth starting Workers for
const KEPT = 32 << 20; // bytes of cached rows

/** @typedef {{offset: number, end: number, spans: number, bytes: Promise<Uint8Array<ArrayBuffer>> | null}} Request */

export class ReadAhead {
  #source;
  #signal;
  /** @type {Fetchers | null} */ #fetchers = null;
  /** @type {Request[]} not sent yet, in order */ #waiting = [];
  /** @type {Map<number, Request>} by offset of each span */ #requests = new Map();
  #held = 0; // bytes sent for and not yet read
  #sent = 0; // requests in flight
  /** @type {Map<number, Promise<Uint8Array>>} rows by offset, least recently used first */ #rows = new Map();
  #gate = gate(4 * AT_ONCE); // rows are small, so more are in flight

  /** @param {WebSource | FileSource} source @param {AbortSignal} [signal] */
  constructor(source, signal) {
    this.#source = source;
    this.#signal = signal;
    this.name = source.name;
    this.size = source.size;
  }

  /**
   * What will be read next; replaces what was expected before.
   * @param {ArrayLike<number>} spans offset, length, offset, …
   */
  expect(spans) {
    this.#waiting = [];
    this.#requests = new Map();
    this.#held = this.#sent = 0;
    this.#fetchers?.end();
    this.#fetchers = null;
    /** @type {Request | null} */
    let last = null;
    let bytes = 0;
    for (let i = 0; i < spans.length; i += 2) {
      const [offset, end] = [spans[i], spans[i] + spans[i + 1]];
      if (last && offset >= last.end && offset - last.end <= GAP && end - last.offset <= REQUEST) {
        Object.assign(last, { end, spans: last.spans + 1 });
      }
      else this.#waiting.push((last = { offset, end, spans: 1, bytes: null }));
      this.#requests.set(offset, last);
      bytes += spans[i + 1];
    }
    if (bytes >= MUCH) this.#fetchers = new Fetchers(this.#source, this.#signal);
    this.#send();
  }

  /** Sends requests while there is room. */
  #send() {
    while (this.#waiting.length && this.#sent < AT_ONCE) {
      const [next] = this.#waiting;
      if (this.#held && this.#held + next.end - next.offset > WINDOW) return;
      this.#waiting.shift();
      this.#begin(next);
    }
  }

  /** @param {Request} request */
  #begin(request) {
    const expected = this.#requests;
    const length = request.end - request.offset;
    this.#sent++;
    this.#held += length;
    const bytes = (this.#fetchers ?? this.#source).read(request.offset, length).finally(() => {
      if (expected !== this.#requests) return; // `expect` was called again
      this.#sent--;
      this.#send();
    });
    bytes.catch(() => {}); // `read` reports it
    request.bytes = bytes;
    return bytes;
  }

  /** @param {number} offset @param {number} length @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async read(offset, length) {
    const request = this.#requests.get(offset);
    if (!request || offset + length > request.end) return this.#source.read(offset, length);
    const expected = this.#requests;
    expected.delete(offset);
    let coming = request.bytes;
    if (!coming) {
      this.#waiting.splice(this.#waiting.indexOf(request), 1);
      coming = this.#begin(request); // out of order: somebody is waiting
    }
    const bytes = await coming;
    if (!--request.spans && expected === this.#requests) {
      this.#held -= request.end - request.offset;
      this.#send();
    }
    return bytes.subarray(offset - request.offset, offset - request.offset + length);
  }

  /** Prefetches rows. @param {Iterable<number>} offsets @param {number} length */
  expectRows(offsets, length) {
    for (const offset of offsets) this.#row(offset, length);
  }

  /** @param {number} offset @param {number} length */
  #row(offset, length) {
    const row = this.#rows.get(offset) ?? this.#fetchedRow(offset, length);
    this.#rows.delete(offset);
    this.#rows.set(offset, row);
    for (const [oldest] of this.#rows) {
      if (this.#rows.size * length <= KEPT) break;
      this.#rows.delete(oldest);
    }
    return row;
  }

  /** @param {number} offset @param {number} length */
  #fetchedRow(offset, length) {
    const row = this.#gate(() => this.#source.read(offset, length));
    row.catch(() => this.#rows.get(offset) === row && this.#rows.delete(offset));
    return row;
  }

  /** @param {ArrayLike<number> & Iterable<number>} offsets @param {number} length */
  async rows(offsets, length) {
    const bytes = roomFor(offsets.length, length);
    const rows = await Promise.all(Array.from(offsets, (offset) => this.#row(offset, length)));
    rows.forEach((row, i) => bytes.set(row, i * length));
    return bytes;
  }

  async finished() {}

  async close() {
    this.expect([]);
    this.#rows.clear();
    await this.#source.close();
  }
}

/** Workers that read copies of a source. */
class Fetchers {
  #workers;
  /**
   * @type {Map<number, {free: {busy: number}, resolve: (bytes: Uint8Array<ArrayBuffer>) => void,
   *   reject: (reason: unknown) => void}>}
   */
  #asked = new Map();
  #last = 0;

  /** @param {WebSource | FileSource} source @param {AbortSignal} [signal] */
  constructor(source, signal) {
    this.#workers = Array.from({ length: FETCHERS }, () => {
      const worker = new Worker(new URL("./fetcher.js", import.meta.url), { type: "module", name: "wgemma fetcher" });
      worker.onmessage = ({ data }) => this.#hear(data);
      worker.onerror = () => this.end(new WgemmaError("worker", `${source.name} cannot be read: a Worker failed. Load it again.`));
      worker.postMessage(source.copy());
      return { worker, busy: 0 };
    });
    signal?.addEventListener("abort", () => this.end(signal.reason), { once: true });
  }

  /** @param {number} offset @param {number} length @returns {Promise<Uint8Array<ArrayBuffer>>} */
  read(offset, length) {
    const free = this.#workers.reduce((best, one) => (one.busy < best.busy ? one : best));
    const id = ++this.#last;
    free.busy++;
    free.worker.postMessage({ id, offset, length });
    return new Promise((resolve, reject) => this.#asked.set(id, { free, resolve, reject }));
  }

  /** @param {{id: number} & ({bytes: Uint8Array<ArrayBuffer>} | {code: ErrorCode, message: string})} answer */
  #hear(answer) {
    const asked = this.#asked.get(answer.id);
    if (!asked) return; // ended in the meantime
    this.#asked.delete(answer.id);
    asked.free.busy--;
    if ("bytes" in answer) asked.resolve(answer.bytes);
    else asked.reject(new WgemmaError(answer.code, answer.message));
  }

  /** @param {unknown} [reason] */
  end(reason = new WgemmaError("worker", "This file is closed.")) {
    for (const { worker } of this.#workers) worker.terminate();
    for (const { reject } of this.#asked.values()) reject(reason);
    this.#asked.clear();
  }
}

/** Limits how many calls run at once; the rest queue. @param {number} most */
function gate(most) {
  /** @type {(() => void)[]} */
  const waiting = [];
  let busy = 0;
  return async (/** @type {() => Promise<Uint8Array>} */ work) => {
    if (busy === most) await new Promise((/** @type {(_: void) => void} */ turn) => waiting.push(turn));
    else busy++;
    try {
      return await work();
    } finally {
      const next = waiting.shift();
      if (next) next();
      else busy--;
    }
  };
}

/** Room for `count` rows, padded to whole 32-bit words, as the GPU needs. @param {number} count @param {number} length */
export function roomFor(count, length) {
  return new Uint8Array(Math.ceil((count * length) / 4) * 4);
}
