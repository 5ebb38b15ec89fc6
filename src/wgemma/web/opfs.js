/**
 * Models in the browser's own storage (the origin private file system): downloaded once, then there after a reload and
 * offline.
 *
 *   wgemma/<key>.gguf   the bytes so far          <key> is a hash of the URL
 *   wgemma/<key>.json   {url, name, size, validator, sha256, whole}
 *   wgemma/verdicts.json
 *
 * A download runs front to back while the model loads from what has arrived; an interrupted one resumes. Synchronous
 * access handles exist in Workers only, so `openSaved` needs a Worker; `saved` and `forget` work anywhere.
 */

/**
 * @typedef {{url: string, name: string, size: number, validator: string, sha256: string, whole: boolean}} Note
 * @typedef {import("./sources.js").How} How
 * @typedef {import("./sources.js").Source} Source
 */

import { ReadAhead, roomFor } from "./ahead.js";
import { FileSource } from "./file.js";
import { changed, isAbort, nameOf, persist, pieces, request, unreachable, validatorOf, WebSource } from "./http.js";
import { Sha256 } from "./sha256.js";
import { human, WgemmaError } from "./trouble.js";

const FOLDER = "wgemma";
const STEP = 8 << 20; // bytes hashed at a time
const SPAN = 16 << 20; // bytes per request for a large file
const MANY = 4; // spans that are worth several connections
const RELEASE = 5_000; // milliseconds until a page that was closed or reloaded has let go of its files

/** @type {Set<{handle: FileSystemHandle}>} handles with a call in flight */
const asked = new Set();

/**
 * Calls a method of a handle and keeps the handle alive until it returns: in Chromium, the promise never settles if the
 * handle is garbage-collected first.
 * @template {FileSystemHandle} H @template T @param {H} handle @param {(handle: H) => Promise<T>} question
 */
async function ask(handle, question) {
  const held = { handle };
  asked.add(held);
  try {
    return await question(handle);
  } finally {
    asked.delete(held);
  }
}

// -- stored models

/**
 * The models in the browser's storage.
 * @returns {Promise<{url: string, name: string, size: number, loaded: number, whole: boolean}[]>}
 */
export async function saved() {
  const place = await folder();
  if (!place) return [];
  const found = [];
  for await (const name of place.keys()) {
    if (!/^[0-9a-f]{32}\.json$/.test(name)) continue;
    const note = await readNote(place, name.slice(0, -5));
    if (!note) continue;
    const file = await fileOf(place, `${name.slice(0, -5)}.gguf`);
    const { url, size, whole } = note;
    found.push({ url, name: note.name, size, loaded: file?.size ?? 0, whole: whole && file?.size === size });
  }
  return found;
}

/** Removes a model from the browser's storage. @param {string | URL} url */
export async function forget(url) {
  const place = await folder();
  if (place) await remove(place, await keyOf(new URL(url, self.location.href).href));
}

async function folder() {
  try {
    return await ask(await navigator.storage.getDirectory(), (root) => root.getDirectoryHandle(FOLDER, { create: true }));
  } catch {
    return null; // no OPFS, or a private window
  }
}

/** @param {string} url */
async function keyOf(url) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url.split("#")[0])));
  return Array.from(digest.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {FileSystemDirectoryHandle} place @param {string} key */
async function remove(place, key) {
  for (const name of [`${key}.json`, `${key}.gguf`]) await ask(place, () => place.removeEntry(name)).catch(() => {});
}

/** @param {FileSystemDirectoryHandle} place @param {string} name */
async function fileOf(place, name) {
  try {
    return await ask(await ask(place, () => place.getFileHandle(name)), (entry) => entry.getFile());
  } catch {
    return null;
  }
}

/** @param {FileSystemDirectoryHandle} place @param {string} name */
async function readText(place, name) {
  const file = await fileOf(place, name);
  return file ? file.text() : "";
}

/**
 * Replaces a small file's contents.
 * @param {FileSystemDirectoryHandle} place @param {string} name @param {string} text
 */
async function writeText(place, name, text) {
  const entry = await ask(place, () => place.getFileHandle(name, { create: true }));
  const handle = await ask(entry, () => entry.createSyncAccessHandle());
  try {
    handle.truncate(0);
    handle.write(new TextEncoder().encode(text), { at: 0 });
    handle.flush();
  } finally {
    handle.close();
  }
}

/** @param {FileSystemDirectoryHandle} place @param {string} key @returns {Promise<Note | null>} */
async function readNote(place, key) {
  try {
    const note = JSON.parse(await readText(place, `${key}.json`));
    return typeof note.url === "string" && Number.isSafeInteger(note.size) ? note : null;
  } catch {
    return null;
  }
}

/** Storage for the verdicts of selftest/verdict.py. */
export const verdicts = {
  async read() {
    const place = await folder();
    return place ? readText(place, "verdicts.json") : "";
  },
  /** @param {string} text */
  async write(text) {
    const place = await folder();
    if (place) await writeText(place, "verdicts.json", text).catch(() => {});
  },
};

// -- opening

/**
 * The stored copy of `url`, or a download that becomes one. Null without OPFS, or while another tab downloads the same
 * file.
 * @param {string} url @param {How} how @returns {Promise<Source | null>}
 */
export async function openSaved(url, how) {
  const place = await folder();
  if (!place) return null;
  const key = await keyOf(url);
  const note = await readNote(place, key);
  if (note?.whole && (await isCurrent(place, key, note, how))) {
    const source = await openWhole(place, key, note);
    if (source) return source;
  }
  const handle = await lock(place, key).catch((error) => {
    throw isFull(error) ? noRoom(`${nameOf(url)} cannot be kept: this page's storage in the browser is full.`) : error;
  });
  return handle && Download.start({ place, key, url, handle, note, how });
}

/**
 * Whether a complete copy is still the right file: by its hash, else by asking the server; yes if that does not answer.
 * @param {FileSystemDirectoryHandle} place @param {string} key @param {Note} note @param {How} how
 */
async function isCurrent(place, key, note, { sha256, signal }) {
  const { url } = note;
  if (sha256 && note.sha256) return note.sha256 === sha256;
  if (sha256) {
    const handle = await lock(place, key);
    if (!handle) return false;
    const found = hashOf(handle, handle.getSize()).hex();
    handle.close();
    if (found === sha256) await writeText(place, `${key}.json`, JSON.stringify({ ...note, sha256 })).catch(() => {});
    return found === sha256;
  }
  try {
    const answer = await fetch(url, { method: "HEAD", cache: "no-store", signal });
    const size = Number(answer.headers.get("Content-Length"));
    return !answer.ok || ((!size || size === note.size) && validatorOf(answer) === note.validator);
  } catch (error) {
    if (isAbort(error)) throw error;
    return true;
  }
}

/** @param {FileSystemDirectoryHandle} place @param {string} key @param {Note} note @returns {Promise<Source | null>} */
async function openWhole(place, key, note) {
  const file = await fileOf(place, `${key}.gguf`);
  if (file?.size !== note.size) return null;
  const discard = () => remove(place, key);
  try {
    const entry = await ask(place, () => place.getFileHandle(`${key}.gguf`));
    const handle = await ask(entry, () => entry.createSyncAccessHandle({ mode: "read-only" }));
    return new SavedFile(handle, note, discard);
  } catch {
    return new ReadAhead(new FileSource(file, note.name)); // another tab has it open
  }
}

/**
 * The file of a model, for this Worker alone; null if another tab has it. After a reload the page's former Worker may
 * hold it a little longer, so this waits.
 * @param {FileSystemDirectoryHandle} place @param {string} key
 */
async function lock(place, key) {
  const entry = await ask(place, () => place.getFileHandle(`${key}.gguf`, { create: true }));
  for (const end = performance.now() + RELEASE; ; await new Promise((done) => setTimeout(done, 50))) {
    try {
      return await ask(entry, () => entry.createSyncAccessHandle());
    } catch (error) {
      if (!isHeld(error) || performance.now() > end) return null;
    }
  }
}

/** Whether somebody else has the file open. @param {unknown} error */
function isHeld(error) {
  return error instanceof Error && error.name === "NoModificationAllowedError";
}

/** A complete copy. */
class SavedFile {
  #handle;
  #buffer = new Uint8Array(0);
  #discard;

  /** @param {FileSystemSyncAccessHandle} handle @param {Note} note @param {() => Promise<void>} discard */
  constructor(handle, { name, size }, discard) {
    this.#handle = handle;
    this.#discard = discard;
    this.name = name;
    this.size = size;
  }

  /** @param {number} offset @param {number} length */
  read(offset, length) {
    if (this.#buffer.length < length) this.#buffer = new Uint8Array(length);
    return this.#fill(this.#buffer.subarray(0, length), offset);
  }

  /** @param {ArrayLike<number> & Iterable<number>} offsets @param {number} length */
  rows(offsets, length) {
    const bytes = roomFor(offsets.length, length);
    let at = 0;
    for (const offset of offsets) this.#fill(bytes.subarray(at, (at += length)), offset);
    return bytes;
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes @param {number} at */
  #fill(bytes, at) {
    const count = this.#handle.read(bytes, { at });
    if (count !== bytes.length) throw new WgemmaError("network", `${this.name} in the browser's storage is truncated. Load it again.`);
    return bytes;
  }

  /** No read-ahead: this handle is synchronous. */
  expect() {}

  expectRows() {}

  async finished() {}

  async close(discard = false) {
    this.#handle.close();
    if (discard) await this.#discard();
  }
}

// -- downloading

/** A running download; what has arrived can be read. */
class Download {
  #place;
  #key;
  #handle;
  #note;
  #how;
  #stop = new AbortController();
  /** @type {Sha256 | null} */ #hash = null;
  #have = 0;
  /** @type {{end: number, resolve: () => void}[]} readers of bytes that have not arrived */ #waiting = [];
  #reader; // a SavedFile on the same handle
  /** @type {unknown} */ #failure = null;
  #finished = Promise.resolve();
  size = 0;

  /**
   * Resumes the last download if the server still has the same file.
   * @param {{place: FileSystemDirectoryHandle, key: string, url: string, handle: FileSystemSyncAccessHandle,
   *   note: Note | null, how: How}} what
   */
  static async start({ place, key, url, handle, note, how }) {
    const download = new Download(place, key, url, handle, how);
    try {
      await download.#begin(note);
    } catch (error) {
      handle.close();
      if (!note) await remove(place, key);
      if (isFull(error)) throw download.#tooLarge();
      throw error instanceof TypeError ? unreachable(url) : error;
    }
    return download;
  }

  /**
   * @param {FileSystemDirectoryHandle} place @param {string} key @param {string} url
   * @param {FileSystemSyncAccessHandle} handle @param {How} how
   */
  constructor(place, key, url, handle, how) {
    this.#place = place;
    this.#key = key;
    this.#handle = handle;
    this.#how = how;
    this.name = nameOf(url);
    /** @type {Note} */
    this.#note = { url, name: this.name, size: 0, validator: "", sha256: how.sha256 ?? "", whole: false };
    this.#reader = new SavedFile(handle, this.#note, async () => {});
    const { signal } = how;
    signal?.addEventListener("abort", () => this.#stop.abort(signal.reason));
  }

  /** @param {Note | null} note of an interrupted download */
  async #begin(note) {
    const { url } = this.#note;
    const had = note ? Math.min(this.#handle.getSize(), note.size) : 0;
    let answer = note && had && had < note.size ? await this.#rest(url, had, note) : null;
    this.#have = answer ? had : 0;
    answer ??= await request(url, { signal: this.#stop.signal });
    const size = note && this.#have ? note.size : Number(answer.headers.get("Content-Length"));
    if (!size) throw new WgemmaError("network", `${this.name}: the server does not send its size, so it cannot be kept.`);
    this.size = size;
    this.#note = { ...this.#note, size, validator: validatorOf(answer) };
    this.#handle.truncate(this.#have);
    await this.#checkRoom();
    await writeText(this.#place, `${this.#key}.json`, JSON.stringify(this.#note));
    this.#finished = this.#run(answer);
    this.#finished.catch((error) => (this.#failure = error)); // readers and `finished` report it
  }

  /** Fails early if the browser says it will not fit. */
  async #checkRoom() {
    const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
    if (quota - usage < this.size - this.#have) throw this.#tooLarge(quota - usage);
  }

  /** @param {number} [room] */
  #tooLarge(room) {
    const free = room === undefined ? "" : `, with room for ${human(Math.max(room, 0))} more`;
    const here = `${human(this.#have)} of it are stored${free}`;
    return noRoom(`${this.name} is ${human(this.size)}, more than this browser will keep: ${here}.`);
  }

  /** @param {Response} answer */
  async #run(answer) {
    if (this.#how.sha256) this.#hash = hashOf(this.#handle, this.#have);
    const resumable = answer.status === 206 || answer.headers.get("Accept-Ranges") === "bytes";
    if (resumable && this.size - this.#have >= MANY * SPAN) await this.#takeSpans(answer);
    else await this.#takeAll(answer);
    this.#handle.flush();
    const digest = this.#hash?.hex() ?? "";
    if (this.#how.sha256 && digest !== this.#how.sha256) {
      this.#failure = new WgemmaError("network", `${this.name} is damaged: its hash is wrong. Load it again.`);
      await this.close(true);
      throw this.#failure;
    }
    await writeText(this.#place, `${this.#key}.json`, JSON.stringify({ ...this.#note, whole: true }));
  }

  get #kept() {
    return `${human(this.#have)} of ${human(this.size)} are kept; the next attempt resumes there.`;
  }

  /** Takes the rest over one connection, reconnecting when it is cut. @param {Response} first */
  async #takeAll(first) {
    /** @type {Response | null} */
    let answer = first;
    await persist(
      this.#note.url,
      this.#stop.signal,
      async () => {
        answer ??= await this.#rest(this.#note.url, this.#have, this.#note);
        if (!answer) throw changed(this.#note.url);
        const before = this.#have;
        for await (const piece of pieces(answer)) this.#take(piece);
        answer = null;
        return { whole: this.#have === this.size, moved: this.#have > before };
      },
      () => this.#kept,
    );
  }

  /** The same over several connections at once, which is faster. @param {Response} answer */
  async #takeSpans(answer) {
    await answer.body?.cancel();
    const { url, size, validator } = this.#note;
    const { signal } = this.#stop;
    const source = new ReadAhead(new WebSource(url, size, validator, signal), signal);
    const spans = [];
    for (let at = this.#have; at < size; at += SPAN) spans.push(at, Math.min(SPAN, size - at));
    source.expect(spans);
    try {
      for (let i = 0; i < spans.length; i += 2) this.#take(await source.read(spans[i], spans[i + 1]));
    } catch (error) {
      throw error instanceof WgemmaError && error.code === "network" ? new WgemmaError("network", `${error.message} ${this.#kept}`) : error;
    } finally {
      await source.close();
    }
  }

  /**
   * The response with all after `have` bytes; null if the server has another file by now, or cannot resume.
   * @param {string} url @param {number} have @param {Note} note
   */
  async #rest(url, have, { size, validator }) {
    const answer = await request(url, { headers: { Range: `bytes=${have}-` }, signal: this.#stop.signal });
    const [, start, total] = /^bytes (\d+)-\d+\/(\d+)$/.exec(answer.headers.get("Content-Range") ?? "") ?? [];
    if (answer.status === 206 && Number(start) === have && Number(total) === size && validatorOf(answer) === validator) {
      return answer;
    }
    await answer.body?.cancel();
    return null;
  }

  /** @param {Uint8Array<ArrayBuffer>} piece */
  #take(piece) {
    if (this.#have + piece.length > this.size) throw changed(this.#note.url);
    try {
      const written = this.#handle.write(piece, { at: this.#have });
      if (written !== piece.length) throw new DOMException("", "QuotaExceededError");
    } catch (error) {
      throw isFull(error) ? this.#tooLarge() : error;
    }
    this.#hash?.update(piece);
    this.#have += piece.length;
    this.#how.progress?.(this.#have, this.size);
    for (const one of this.#waiting.filter(({ end }) => end <= this.#have)) one.resolve();
    this.#waiting = this.#waiting.filter(({ end }) => end > this.#have);
  }

  /** @param {number} end */
  #until(end) {
    if (this.#failure) throw this.#failure;
    if (end <= this.#have) return null;
    /** @type {PromiseWithResolvers<void>} */
    const { promise, resolve, reject } = Promise.withResolvers();
    this.#waiting.push({ end, resolve });
    this.#finished.catch(reject);
    return promise;
  }

  // -- as a source

  /** @param {number} offset @param {number} length */
  read(offset, length) {
    const wait = this.#until(offset + length);
    return wait ? wait.then(() => this.#reader.read(offset, length)) : this.#reader.read(offset, length);
  }

  /** @param {ArrayLike<number> & Iterable<number>} offsets @param {number} length */
  rows(offsets, length) {
    const wait = this.#until(Math.max(...offsets) + length);
    return wait ? wait.then(() => this.#reader.rows(offsets, length)) : this.#reader.rows(offsets, length);
  }

  /** No read-ahead: bytes arrive front to back, whatever is wanted. */
  expect() {}

  expectRows() {}

  finished() {
    return this.#finished;
  }

  async close(discard = false) {
    this.#stop.abort();
    this.#handle.close();
    if (discard) await remove(this.#place, this.#key);
  }
}

/** Whether the browser's storage is full. @param {unknown} error */
function isFull(error) {
  return error instanceof Error && error.name === "QuotaExceededError";
}

/** @param {string} sentence */
function noRoom(sentence) {
  const advice = "Remove other models, free some disk space, load it without keeping it, or open it as a file.";
  return new WgemmaError("quota", `${sentence} ${advice}`);
}

/**
 * A hash of the first `length` bytes of a file, ready for more.
 * @param {FileSystemSyncAccessHandle} handle @param {number} length
 */
function hashOf(handle, length) {
  const hash = new Sha256();
  const bytes = new Uint8Array(STEP);
  for (let at = 0; at < length; at += STEP) {
    const part = bytes.subarray(0, Math.min(STEP, length - at));
    handle.read(part, { at });
    hash.update(part);
  }
  return hash;
}
