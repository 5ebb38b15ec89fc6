/**
 * HTTP range requests that retry, and resume where a connection was cut.
 *
 * `WebSource` stores nothing and ahead.js makes a source of it; opfs.js stores what it downloads.
 */

import { WgemmaError } from "./trouble.js";

const ATTEMPTS = 5; // failed requests in a row before giving up
const PATIENCE = 30_000; // milliseconds without a byte until a connection counts as cut

/** A file on a web server that answers Range requests. Nothing is stored. */
export class WebSource {
  /** @param {string} url @param {AbortSignal} [signal] */
  static async open(url, signal) {
    let size = NaN;
    let validator = "";
    await persist(url, signal, async () => {
      const answer = await request(url, { headers: { Range: "bytes=0-0" }, signal });
      await answer.body?.cancel();
      if (answer.status === 206) size = Number(/^bytes 0-0\/(\d+)$/.exec(answer.headers.get("Content-Range") ?? "")?.[1]);
      validator = validatorOf(answer);
      return { whole: true, moved: true };
    });
    if (!size) {
      throw new WgemmaError(
        "network",
        `${url}: the server does not answer Range requests, so it cannot be read in pieces. Load it with save: true.`,
      );
    }
    return new WebSource(url, size, validator, signal);
  }

  /** @param {string} url @param {number} size @param {string} validator @param {AbortSignal} [signal] */
  constructor(url, size, validator, signal) {
    this.name = nameOf(url);
    this.size = size;
    this.url = url;
    this.validator = validator;
    this.signal = signal;
  }

  /** @param {number} offset @param {number} length */
  async read(offset, length) {
    const bytes = new Uint8Array(length);
    let have = 0;
    await persist(this.url, this.signal, async () => {
      const headers = { Range: `bytes=${offset + have}-${offset + length - 1}` };
      const answer = await request(this.url, { headers, signal: this.signal });
      if (answer.status !== 206 || validatorOf(answer) !== this.validator) throw changed(this.url);
      const before = have;
      for await (const piece of pieces(answer)) {
        bytes.set(piece.subarray(0, length - have), have);
        have += Math.min(piece.length, length - have);
      }
      return { whole: have === length, moved: have > before };
    });
    return bytes;
  }

  /** What fetcher.js needs to open it again. */
  copy() {
    return { url: this.url, size: this.size, validator: this.validator };
  }

  async close() {}
}

/** The file name in a URL, without its query. @param {string} url */
export function nameOf(url) {
  const last = new URL(url).pathname.split("/").pop() || url;
  try {
    return decodeURIComponent(last);
  } catch {
    return last;
  }
}

/** ETag or Last-Modified: changes when the file does. @param {Response} answer */
export function validatorOf(answer) {
  return answer.headers.get("ETag") ?? answer.headers.get("Last-Modified") ?? "";
}

/** @param {string} url */
export function changed(url) {
  return new WgemmaError("network", `${nameOf(url)} changed on the server while it was being read. Load it again.`);
}

/**
 * Fetches; throws WgemmaError for an HTTP error and, like fetch, TypeError for no answer.
 * @param {string} url @param {{headers?: Record<string, string>, signal?: AbortSignal}} [options]
 */
export async function request(url, { headers = {}, signal } = {}) {
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(new TypeError("no answer")), PATIENCE);
  const signals = [patience.signal, ...(signal ? [signal] : [])];
  const answer = await fetch(url, { headers, signal: AbortSignal.any(signals), cache: "no-store" }).finally(() => clearTimeout(timer));
  if (!answer.ok) {
    throw new WgemmaError("network", `${nameOf(url)}: the server answered ${answer.status} ${answer.statusText}.`.replace(" .", "."));
  }
  return answer;
}

/** The chunks of a response; they end early if the connection is cut. @param {Response} answer */
export async function* pieces(answer) {
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ (answer.body).getReader();
  try {
    for (;;) {
      const timer = setTimeout(() => reader.cancel(), PATIENCE);
      const { done, value } = await reader.read().finally(() => clearTimeout(timer));
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (isAbort(error)) throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Whether the caller gave up. @param {unknown} error */
export function isAbort(error) {
  return error instanceof Error && error.name === "AbortError";
}

/**
 * Retries until `attempt` is whole; gives up after several attempts in a row that got no bytes.
 * @param {string} url @param {AbortSignal | undefined} signal
 * @param {() => Promise<{whole: boolean, moved: boolean}>} attempt
 * @param {() => string} [kept] appended to the error
 */
export async function persist(url, signal, attempt, kept = () => "") {
  for (let failures = 0; failures < ATTEMPTS; ) {
    if (failures) await new Promise((done) => setTimeout(done, 100 * 2 ** failures));
    signal?.throwIfAborted();
    try {
      const { whole, moved } = await attempt();
      if (whole) return;
      failures = moved ? 0 : failures + 1;
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // fetch throws TypeError when there is no answer
      failures++;
    }
  }
  throw unreachable(url, ` ${kept()}`.trimEnd());
}

/** @param {string} url */
export function unreachable(url, more = "") {
  const host = new URL(url).host;
  return new WgemmaError("network", `${nameOf(url)}: ${host} does not answer. Check the connection and load it again.${more}`);
}
