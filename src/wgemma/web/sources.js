/**
 * Where a model's bytes come from: a web server, the browser's storage, or a picked file.
 *
 * A source has a name and a size, and reads spans as Uint8Arrays that stay in JavaScript's memory:
 *
 *   read(offset, length)      one span; the next read may overwrite it
 *   rows(offsets, length)     spans of equal length back to back, zero-padded to whole 32-bit words
 *   expect(spans)             the spans `read` will want next: offset, length, offset, length, …, in order
 *   expectRows(offsets, length)
 *   finished()                resolves when a download is complete and its hash is right
 *   close(discard)            stops a download; what it has is kept unless `discard` is true
 *
 * `read` and `rows` return bytes if they can, else a promise. Offsets are exact up to 2⁵³.
 */

import { ReadAhead } from "./ahead.js";
import { FileSource } from "./file.js";
import { WebSource } from "./http.js";
import { openSaved } from "./opfs.js";

/**
 * @typedef {ArrayLike<number> & Iterable<number>} Numbers
 * @typedef {Uint8Array | Promise<Uint8Array>} Bytes
 * @typedef {{
 *   name: string,
 *   size: number,
 *   read: (offset: number, length: number) => Bytes,
 *   rows: (offsets: Numbers, length: number) => Bytes,
 *   expect: (spans: ArrayLike<number>) => void,
 *   expectRows: (offsets: Numbers, length: number) => void,
 *   finished: () => Promise<void>,
 *   close: (discard?: boolean) => Promise<void>,
 * }} Source
 * @typedef {{save?: boolean, sha256?: string, signal?: AbortSignal, progress?: (loaded: number, total: number) => void}} How
 */

/**
 * @param {string | Blob | FileSystemFileHandle} target @param {How} how
 * @returns {Promise<Source>}
 */
export async function openSource(target, how = {}) {
  if (typeof target === "string") {
    const url = new URL(target, self.location.href).href;
    const saved = (how.save ?? true) ? await openSaved(url, how) : null;
    return saved ?? new ReadAhead(await WebSource.open(url, how.signal), how.signal);
  }
  return new ReadAhead(new FileSource(target instanceof Blob ? target : await target.getFile()));
}
