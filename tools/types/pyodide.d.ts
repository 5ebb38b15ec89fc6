// What worker.js and replay.js use of Pyodide, which is not in git.

/** Python's buffer protocol. */
interface PyBuffer<T> {
  readonly data: T;
  release(): void;
}

/** A Python object with a buffer. */
interface PyArray {
  getBuffer(type: "u8"): PyBuffer<Uint8Array<ArrayBuffer>>;
  getBuffer(type: "f64"): PyBuffer<Float64Array<ArrayBuffer>>;
}

/** Emscripten's file system. */
interface PyFiles {
  readdir(path: string): string[];
  stat(path: string): { mode: number };
  isFile(mode: number): boolean;
  readFile(path: string): Uint8Array<ArrayBuffer>;
}

declare module "*/pyodide.mjs" {
  export function loadPyodide(options: { indexURL: string; convertNullToNone: boolean }): Promise<{
    FS: PyFiles;
    _module: { HEAPU8: Uint8Array };
    unpackArchive(archive: ArrayBuffer, format: string, options: { extractDir: string }): void;
    /** The value of the last line. */
    runPython(code: string): unknown;
  }>;
}
