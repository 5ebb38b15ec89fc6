/**
 * Reading ahead: a source (see sources.js) around one whose answers take time, a web server's or a picked file's.
 *
 * A loader says what it will want, and in which order (`expect`). Requests for that go out several at a time, neighbours
 * in one, while the loader is still busy with what came before. Rows of a table, which nobody can foretell for long, are
 * kept for as long as there is room.
 */

/**
 * @typedef {import("./file.js").FileSource} FileSource
 * @typedef {import("./http.js").WebSource} WebSource
 * @typedef {import("./wgemma").ErrorCode} ErrorCode
 */

import { WgemmaError } from "./trouble.js";

const FETCHERS = 4; // Workers that fetch
const AT_ONCE = 6; // requests under way: as many connections as browsers open to one server
const WINDOW = 384 << 20; // bytes that are on their way, or here and not taken yet
const REQUEST = 16 << 20; // neighbours are asked for together up to this size
const GAP = 1 << 16; // what lies between neighbours is not worth a request of its own
const MUCH = 64 << 20; // bytes that are worth Workers of their own
const KEPT = 32 << 20; // bytes of rows that are kept

/** @typedef {{offset: number, end: number, spans: number, bytes: Promise<Uint8Array<ArrayBuffer>> | null}} Request */

export class ReadAhead {
  #source;
  #signal;
  /** @type {Fetchers | null} */ #fetchers = null;
  /** @type {Request[]} those that were not sent yet, in the order of need */ #waiting = [];
  /** @type {Map<number, Request>} by the offsets of their spans */ #requests = new Map();
  #held = 0; // bytes of requests that were sent and not taken
  #sent = 0; // requests under way
  /** @type {Map<number, Promise<Uint8Array>>} rows by offset, the one used longest ago first */ #rows = new Map();
  #gate = gate(4 * AT_ONCE); // rows are small: it takes more of them to fill a line

  /** @param {WebSource | FileSource} source @param {AbortSignal} [signal] */
  constructor(source, signal) {
    this.#source = source;
    this.#signal = signal;
    this.name = source.name;
    this.size = source.size;
  }

  /**
   * What will be read from now on; what was expected before is not any more.
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

  /** Sends what there is room for. */
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
      if (expected !== this.#requests) return; // something else is expected by now
      this.#sent--;
      this.#send();
    });
    bytes.catch(() => {}); // whoever takes it hears of it
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
      coming = this.#begin(request); // out of turn: room or not, somebody waits for it
    }
    const bytes = await coming;
    if (!--request.spans && expected === this.#requests) {
      this.#held -= request.end - request.offset;
      this.#send();
    }
    return bytes.subarray(offset - request.offset, offset - request.offset + length);
  }

  /** Rows that will be wanted soon. @param {Iterable<number>} offsets @param {number} length */
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

/** Workers that read from copies of a source. */
class Fetchers {
  #workers;
  /** @type {Map<number, {free: {busy: number}, resolve: (bytes: Uint8Array<ArrayBuffer>) => void, reject: (reason: unknown) => void}>} */
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
    if (!asked) return; // it was ended meanwhile
    this.#asked.delete(answer.id);
    asked.free.busy--;
    if ("bytes" in answer) asked.resolve(answer.bytes);
    else asked.reject(new WgemmaError(answer.code, answer.message));
  }

  /** @param {unknown} [reason] */
  end(reason = new WgemmaError("worker", "This file is not read any more.")) {
    for (const { worker } of this.#workers) worker.terminate();
    for (const { reject } of this.#asked.values()) reject(reason);
    this.#asked.clear();
  }
}

/** Runs work, but no more than so much at once; the rest waits for its turn. @param {number} most */
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

/** An array for `count` rows; zeros fill its last word, because GPUs are written to in words. @param {number} count @param {number} length */
export function roomFor(count, length) {
  return new Uint8Array(Math.ceil((count * length) / 4) * 4);
}
