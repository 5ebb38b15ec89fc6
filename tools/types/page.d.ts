// What the page uses and TypeScript's types of a window leave out.

// Chromium only.
interface Navigator {
  readonly deviceMemory?: number;
  readonly userAgentData?: { readonly mobile: boolean };
}

// opfs.js runs in Workers, too: only they have these.
interface FileSystemSyncAccessHandle {
  close(): void;
  flush(): void;
  getSize(): number;
  read(buffer: AllowSharedBufferSource, options?: { at?: number }): number;
  truncate(size: number): void;
  write(buffer: AllowSharedBufferSource, options?: { at?: number }): number;
}
interface FileSystemFileHandle {
  createSyncAccessHandle(options?: { mode?: "readwrite" | "read-only" }): Promise<FileSystemSyncAccessHandle>;
}

// Not in every browser.
declare var trustedTypes:
  | { createPolicy(name: string, rules: { createScriptURL: (url: string) => string | null }): unknown }
  | undefined;
