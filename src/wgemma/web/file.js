/** A picked file, or any Blob. ahead.js makes a source of it. */

import { WgemmaError } from "./trouble.js";

export class FileSource {
  /** @param {Blob | File} blob @param {string} [name] */
  constructor(blob, name = "name" in blob ? blob.name : "the file") {
    this.name = name;
    this.size = blob.size;
    this.blob = blob;
  }

  /** @param {number} offset @param {number} length */
  async read(offset, length) {
    try {
      return new Uint8Array(await this.blob.slice(offset, offset + length).arrayBuffer());
    } catch {
      throw new WgemmaError("network", `${this.name} can no longer be read: it was moved or changed. Pick it again.`);
    }
  }

  /** What fetcher.js needs to open it again. */
  copy() {
    return { blob: this.blob, name: this.name };
  }

  async close() {
    this.blob = new Blob();
  }
}
