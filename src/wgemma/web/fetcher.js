/**
 * A Worker that only reads spans of a file, from a web server or picked. Downloads are bound by the thread that takes
 * the bytes, so several Workers are several times as fast as one.
 *
 *   in    {url, size, validator} or {blob, name} first, then {id, offset, length}
 *   out   {id, bytes} or {id, code, message}
 */

import { FileSource } from "./file.js";
import { WebSource } from "./http.js";

/** @type {FileSource | WebSource | null} */
let source = null;

self.onmessage = async ({ data }) => {
  if (!source) {
    source = data.blob ? new FileSource(data.blob, data.name) : new WebSource(data.url, data.size, data.validator);
    return;
  }
  const { id, offset, length } = data;
  try {
    const bytes = await source.read(offset, length);
    self.postMessage({ id, bytes }, [bytes.buffer]);
  } catch (error) {
    const { code, message } = /** @type {Error & {code?: string}} */ (error);
    self.postMessage({ id, code: code ?? "worker", message });
  }
};
