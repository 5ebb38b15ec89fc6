/** A picked file, or any other Blob, as a source (see sources.js). */

import { WgemmaError } from "./trouble.js";

const AT_ONCE = 8; // spans asked for at a time

export class FileSource {
  /** @param {Blob} blob */
  constructor(blob, name = blob.name ?? "the file") {
    this.name = name;
    this.size = blob.size;
    this.blob = blob;
  }

  async read(offset, length) {
    try {
      return new Uint8Array(await this.blob.slice(offset, offset + length).arrayBuffer());
    } catch {
      throw new WgemmaError("network", `${this.name} cannot be read any more: it was moved or changed. Pick it again.`);
    }
  }

  rows(offsets, length) {
    return gathered(this, offsets, length);
  }

  async finished() {}

  async close() {
    this.blob = new Blob();
  }
}

/** Many small spans of a source that answers with promises. */
export async function gathered(source, offsets, length) {
  const wanted = [...offsets];
  const bytes = new Uint8Array(wanted.length * length);
  let next = 0;
  const take = async () => {
    while (next < wanted.length) {
      const i = next++;
      bytes.set(await source.read(wanted[i], length), i * length);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, take));
  return bytes;
}
