/**
 * Reading ahead: a source (see sources.js) around one whose answers take time, a web server's or a picked file's.
 *
 * A loader says what it will want, and in which order (`expect`). Requests for that go out several at a time, neighbours
 * in one, while the loader is still busy with what came before. Rows of a table, which nobody can foretell for long, are
 * kept for as long as there is room.
 */

import { WgemmaError } from "./trouble.js";

const FETCHERS = 4; // Workers that fetch
const AT_ONCE = 6; // requests under way: as many connections as browsers open to one server
const WINDOW = 384 << 20; // bytes that are on their way, or here and not taken yet
const REQUEST = 16 << 20; // neighbours are asked for together up to this size
const GAP = 1 << 16; // what lies between neighbours is not worth a request of its own
const MUCH = 64 << 20; // bytes that are worth Workers of their own
const KEPT = 32 << 20; // bytes of rows that are kept

export class ReadAhead {
  #source;
  #signal;
  #fetchers = null;
  #waiting = []; // requests that were not sent yet, in the order of need
  #requests = new Map(); // offset of a span → its request: {offset, end, spans, bytes: Promise | null}
  #held = 0; // bytes of requests that were sent and not taken
  #sent = 0; // requests under way
  #rows = new Map(); // offset → Promise of a row, the one used longest ago first
  #gate = gate(4 * AT_ONCE); // rows are small: it takes more of them to fill a line

  /** @param {import("./http.js").WebSource | import("./file.js").FileSource} source @param {AbortSignal} [signal] */
  constructor(source, signal) {
    this.#source = source;
    this.#signal = signal;
    this.name = source.name;
    this.size = source.size;
  }

  /** What will be read from now on; what was expected before is not any more. @param spans offset, length, offset, … */
  expect(spans) {
    this.#waiting = [];
    this.#requests = new Map();
    this.#held = this.#sent = 0;
    this.#fetchers?.end();
    this.#fetchers = null;
    let last = null;
    let bytes = 0;
    for (let i = 0; i < spans.length; i += 2) {
      const [offset, end] = [spans[i], spans[i] + spans[i + 1]];
      const near = last && offset >= last.end && offset - last.end <= GAP && end - last.offset <= REQUEST;
      if (near) Object.assign(last, { end, spans: last.spans + 1 });
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
      this.#begin(this.#waiting.shift());
    }
  }

  #begin(request) {
    const expected = this.#requests;
    const length = request.end - request.offset;
    this.#sent++;
    this.#held += length;
    request.bytes = (this.#fetchers ?? this.#source).read(request.offset, length).finally(() => {
      if (expected !== this.#requests) return; // something else is expected by now
      this.#sent--;
      this.#send();
    });
    request.bytes.catch(() => {}); // whoever takes it hears of it
  }

  async read(offset, length) {
    const request = this.#requests.get(offset);
    if (!request || offset + length > request.end) return this.#source.read(offset, length);
    const expected = this.#requests;
    expected.delete(offset);
    if (!request.bytes) {
      this.#waiting.splice(this.#waiting.indexOf(request), 1);
      this.#begin(request); // out of turn: room or not, somebody waits for it
    }
    const bytes = await request.bytes;
    if (!--request.spans && expected === this.#requests) {
      this.#held -= request.end - request.offset;
      this.#send();
    }
    return bytes.subarray(offset - request.offset, offset - request.offset + length);
  }

  /** Rows that will be wanted soon. */
  expectRows(offsets, length) {
    for (const offset of offsets) this.#row(offset, length);
  }

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

  #fetchedRow(offset, length) {
    const row = this.#gate(() => this.#source.read(offset, length));
    row.catch(() => this.#rows.get(offset) === row && this.#rows.delete(offset));
    return row;
  }

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
  #asked = new Map(); // id → {free: whose turn it was, resolve, reject}
  #last = 0;

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

  read(offset, length) {
    const free = this.#workers.reduce((best, one) => (one.busy < best.busy ? one : best));
    const id = ++this.#last;
    free.busy++;
    free.worker.postMessage({ id, offset, length });
    return new Promise((resolve, reject) => this.#asked.set(id, { free, resolve, reject }));
  }

  #hear({ id, bytes, code, message }) {
    const asked = this.#asked.get(id);
    if (!asked) return; // it was ended meanwhile
    this.#asked.delete(id);
    asked.free.busy--;
    if (bytes) asked.resolve(bytes);
    else asked.reject(new WgemmaError(code, message));
  }

  end(reason = new WgemmaError("worker", "This file is not read any more.")) {
    for (const { worker } of this.#workers) worker.terminate();
    for (const { reject } of this.#asked.values()) reject(reason);
    this.#asked.clear();
  }
}

/** Runs work, but no more than so much at once; the rest waits for its turn. */
function gate(most) {
  const waiting = [];
  let busy = 0;
  return async (work) => {
    if (busy === most) await new Promise((turn) => waiting.push(turn));
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

/** An array for `count` rows; zeros fill its last word, because GPUs are written to in words. */
export function roomFor(count, length) {
  return new Uint8Array(Math.ceil((count * length) / 4) * 4);
}
