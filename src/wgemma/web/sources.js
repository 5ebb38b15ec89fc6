/**
 * Where a model's bytes come from in a page: a web server, the browser's own storage, a file somebody picked.
 *
 * A source has a name and a size, and gives spans of itself as Uint8Arrays that stay in JavaScript's memory:
 *
 *   read(offset, length)      one span; it may be overwritten by the next read
 *   rows(offsets, length)     spans of one length behind each other, and zeros up to a whole word
 *   expect(spans)             what `read` will be asked for: offset, length, offset, length, … in the order of need
 *   expectRows(offsets, length)
 *   finished()                resolves when nothing is on its way any more: a download is whole and its hash is right
 *   close(discard)            lets go; a download stops, and what came of it is kept unless it is to be discarded
 *
 * `read` and `rows` answer at once where they can and with a promise where they must. Offsets are exact up to 2⁵³.
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
