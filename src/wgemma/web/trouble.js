/**
 * Errors: a message to show as it is, and a code for programs.
 *
 *   no-webgpu      no WebGPU, or no usable GPU
 *   not-gguf       the file is not a GGUF
 *   cut-off        the file ends too early
 *   quota          the browser's storage has no room for the model
 *   network        no answer, a damaged download, or a file that is gone
 *   out-of-memory  the GPU is out of memory
 *   device-lost    the GPU went away and did not come back
 *   worker         the engine itself failed
 *   model          a model that cannot run
 *   media          a picture or a sound that cannot be read
 *   settings       an invalid option or message
 *   adapter        not an adapter, or not for this model
 *   data           examples that cannot be used
 *   training       training cannot start or go on
 */
export class WgemmaError extends Error {
  /** @param {import("./wgemma").ErrorCode} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.name = "WgemmaError";
    this.code = code;
  }
}

/** 1234567 → "1.2 MB" @param {number} bytes */
export function human(bytes) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    unit++;
  }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}
