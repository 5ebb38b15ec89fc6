// What the Workers use and TypeScript's types of a Worker leave out.

interface FileSystemFileHandle {
  createSyncAccessHandle(options?: { mode?: "readwrite" | "read-only" }): Promise<FileSystemSyncAccessHandle>;
}

// wgemma.d.ts names it; there are none in Workers.
interface AudioBuffer {}
