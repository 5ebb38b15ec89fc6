/**
 * What goes wrong, for people: a sentence to show as it is, and a code for programs.
 *
 *   no-webgpu      the browser has no WebGPU, or its GPU cannot be used
 *   not-gguf       the file is not a GGUF
 *   cut-off        the file ends too early
 *   quota          the browser has no room to keep the model
 *   network        bytes could not be had: no answer, a damaged download, a file that is gone
 *   out-of-memory  the GPU has no room
 *   device-lost    the GPU went away and did not come back
 *   worker         the engine itself failed
 *   model          a file that cannot be run
 *   media          a picture or a sound that cannot be read
 *   settings       a setting or a message that makes no sense
 *   adapter        a file that is no adapter, or none for this model
 *   data           examples that cannot be trained on
 *   training       a training that cannot begin, or cannot go on
 */
export class WgemmaError extends Error {
  /** @param {import("./wgemma").ErrorCode} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.name = "WgemmaError";
    this.code = code;
  }
}

/** A number of bytes, for people. @param {number} bytes */
export function human(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit++;
  }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}
