// The types of wgemma.js. See docs/browser.md.

export type Source = string | URL | Blob | FileSystemFileHandle;

export interface Progress {
  /** start: Python starts; check: the GPU's kernels are tested; load: weights go to the GPU. */
  stage: "start" | "download" | "check" | "load" | "ready";
  /** Bytes; 0 in stages that do not count them. */
  loaded: number;
  total: number;
  /** The same, ready to show. */
  text: string;
}

export interface LoadOptions {
  onProgress?: (progress: Progress) => void;
  /** Stops loading; what has been downloaded is kept. */
  signal?: AbortSignal;
  /** The model's name; defaults to its file name. */
  name?: string;
  /** Context length in tokens; defaults to what the model allows. */
  context?: number;
  /** Keep the download in the browser's storage, so the next load needs no network. Default: true. */
  save?: boolean;
  /** The file's SHA-256 in hexadecimal; a download with another hash is rejected. */
  sha256?: string;
  /** The file with the vision and audio towers, if the model file does not have them. */
  projector?: Source;
  /** Type of the KV cache: "f16" (default), or "f32" for twice the memory. */
  kv?: "f16" | "f32";
  /** "fast" (default) quantises activations to 8 bits if the GPU can multiply those; "exact" does not. */
  precision?: "fast" | "exact";
  /**
   * Where the per-layer table of E2B and E4B lives: on the GPU, or in the file, from which each token reads a row.
   * "auto" tries the GPU and falls back to the file; phones and small machines leave a large table in the file.
   */
  ple?: "auto" | "gpu" | "host";
  /** The system text of chats that have none. */
  system?: string;
  /** What every chat begins with, after the system text; texts of users and of the assistant. */
  messages?: Message[];
}

export interface ModelInfo {
  /** wgemma's version. */
  version: string;
  name: string;
  parameters: number;
  quantisation: string;
  precision: "fast" | "exact";
  context: number;
  vocabulary: number;
  sees: boolean;
  hears: boolean;
  /** The GPU's name, features and limits; limits are in WebGPU's units. */
  adapter: string;
  features: string[];
  limits: Record<string, number>;
  /** Where the per-layer table lives; null if the model has none. */
  table: "gpu" | "host" | null;
  /** Where the time went, in milliseconds. `reading` is the part spent waiting for the file's bytes. */
  loading: { total: number; stages: { name: string; ms: number; bytes?: number; reading?: number }[] };
  /** Size of the model's files. */
  bytes: number;
  /** Bytes on the GPU. */
  gpuBytes: number;
}

export interface ToolCall {
  name: string;
  arguments: Record<string, unknown>;
  /** Why the arguments could not be parsed, and the call as the model wrote it. */
  error: string | null;
  raw: string;
}

export type ContentPart =
  | { type: "text"; text: string }
  | { type: "image"; image: Blob | ImageBitmap | ImageData; budget?: 70 | 140 | 280 | 560 | 1120 }
  | { type: "audio"; audio: Blob | AudioBuffer | Float32Array };

/** As in Python: role, content, and for tool calls tool_calls, tool_call_id, name. */
export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "model" | "tool";
  /** A tool's result may also be an object. */
  content?: string | ContentPart[] | Record<string, unknown> | null;
  [more: string]: unknown;
}

export interface ChatOptions {
  tools?: object[];
  /** "auto" (default), "none", "required" (the reply calls a tool), or the name of the tool to call. */
  toolChoice?: string;
  /** Whether a reply may call several tools. Default: true. */
  parallelToolCalls?: boolean;
  /** What the answer must look like: a JSON schema, or "json" for any JSON object. */
  format?: object | boolean | "json";
  /** A level limits the tokens of a thought: low 512, medium 2048, high 8192. */
  think?: boolean | "low" | "medium" | "high";
  /** Ends the reply; the last part's finishReason is then "cancelled". */
  signal?: AbortSignal;
  maxTokens?: number;
  thinkingBudget?: number;
  stop?: string | string[];
  /** Whether the oldest turns of a chat that is too long are dropped; if not, it is refused. Default: true. */
  shift?: boolean;
  temperature?: number;
  topK?: number;
  topP?: number;
  minP?: number;
  seed?: number;
  repeatPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  repeatLastN?: number;
  adapter?: AdapterChoice;
}

/** The adapters of a call: one by name, scales by name, or null for the bare model. Default: all that are loaded. */
export type AdapterChoice = string | Record<string, number> | null;

export interface Part {
  kind: "thinking" | "content" | "tool_call";
  text: string;
  toolCall?: ToolCall;
  /** From here on: in the last part only. */
  finishReason?: "stop" | "length" | "tool" | "cancelled";
  /**
   * Prompt tokens, how many of them came from the KV cache, tokens of the reply, and how many of the oldest messages
   * were left out because the context is full.
   */
  usage?: { prompt: number; reused: number; generated: number; dropped: number };
  /** Milliseconds to the first token; tokens per second after it. */
  timing?: { firstToken: number; tokensPerSecond: number };
}

/** All are optional. */
export interface TrainingSettings {
  /** Default: 16. A higher rank learns more and makes a larger adapter. */
  rank?: number;
  /** Default: 32. The adapter is scaled by alpha / rank. */
  alpha?: number;
  /** Default: "q,k,v,o,gate,up,down". Also: ple_gate, ple_projection, all. */
  targets?: string | string[];
  /** Learning rate. Default: 2e-4. */
  lr?: number;
  schedule?: "cosine" | "linear" | "constant";
  /** Default: 0.05. Below 1 a share of all steps, else a number of steps. */
  warmup?: number;
  /** Default: 3, unless `steps` is given. */
  epochs?: number;
  steps?: number;
  /** Sequences per step. Default: 8. */
  batch?: number;
  /** Tokens per sequence. Default: 1024; longer examples are truncated. */
  seq?: number;
  /** Pack several short examples into one sequence. Default: true. */
  packing?: boolean;
  seed?: number;
  dropout?: number;
  rslora?: boolean;
  weightDecay?: number;
  clip?: number;
  /** Share of the examples held out for validation. Default: 0. */
  validation?: number;
  /** Steps between validations. */
  saveEvery?: number;
  /** Skip bad lines instead of refusing the file. */
  skipBad?: boolean;
  /** System prompt for conversations that have none; by default, what `load` was given. */
  system?: string;
  /** Stops after the current step. */
  signal?: AbortSignal;
}

export interface Examined {
  examples: number;
  /** Examples held out for validation. */
  held: number;
  tokens: number;
  /** Tokens that count towards the loss. */
  targets: number;
  /** Examples that are truncated. */
  truncated: number;
  bad: { line: number; reason: string }[];
  steps: number;
}

export interface TrainingStep {
  step: number;
  steps: number;
  epoch: number;
  loss: number;
  rate: number;
  /** Gradient norm before clipping. */
  norm: number;
  tokensPerSecond: number;
  secondsLeft: number;
  /** Bytes on the GPU. */
  memory: number;
  /** Loss on the held-out examples, if it was computed after this step. */
  validation: number | null;
}

/** The last value, also when training was stopped. If training failed, an error follows. */
export interface Trained {
  /** One per step. */
  losses: number[];
  validation: [step: number, loss: number][];
  /** Steps planned, and whether training stopped before the last. */
  steps: number;
  stopped: boolean;
  /** gguf for llama.cpp and Ollama; config and safetensors for PEFT; a model card; the loss curve as SVG. */
  adapter: { gguf: File; config: File; safetensors: File; card: File; curve: File };
}

/** Made by `load`. */
export class Model {
  private constructor();
  readonly info: ModelInfo;
  /** The loaded adapters and their scales. */
  readonly adapters: Record<string, number>;
  /** Streams the reply; leaving the loop ends it. One reply at a time: a second call waits its turn. */
  chat(messages: Message[], options?: ChatOptions): AsyncGenerator<Part, void, void>;
  /** Logits after each id, with the final soft cap: [ids.length × vocabulary]. */
  logits(ids: Iterable<number>, options?: { adapter?: AdapterChoice }): Promise<Float32Array>;
  tokenize(text: string): Promise<number[]>;
  /** Embeddings as the decoder gets them: [tokens × width]. */
  encodeImage(image: Blob | ImageBitmap | ImageData, budget?: number): Promise<Float32Array>;
  encodeAudio(audio: Blob | AudioBuffer | Float32Array): Promise<Float32Array>;
  /** Loads a LoRA adapter: a GGUF file, or PEFT's adapter_config.json and adapter_model.safetensors. Returns its name. */
  loadAdapter(source: Source | [Source, Source], options?: { name?: string; scale?: number }): Promise<string>;
  unloadAdapter(name: string): Promise<void>;
  /** Reads a file of examples, one JSON object per line, and reports what is in it. */
  examine(data: Blob | string, settings?: TrainingSettings): Promise<Examined>;
  /** Trains a LoRA adapter: yields each step, then the adapter. */
  finetune(data: Blob | string, settings?: TrainingSettings): AsyncGenerator<TrainingStep | Trained, void, void>;
  /** Clears the KV cache. */
  reset(): Promise<void>;
  /** Bytes in Python's heap and on the GPU. */
  stats(): Promise<{ heap: number; gpu: number }>;
  /** Frees everything; the Worker stays for the next model. */
  close(): Promise<void>;
}

export type ErrorCode =
  | "no-webgpu"
  | "not-gguf"
  | "cut-off"
  | "quota"
  | "network"
  | "out-of-memory"
  | "device-lost"
  | "worker"
  | "model"
  | "media"
  | "settings"
  | "adapter"
  | "data"
  | "training";

/** `message` is a sentence you can show as it is. */
export class WgemmaError extends Error {
  constructor(code: ErrorCode, message: string);
  readonly code: ErrorCode;
}

export function supported(): Promise<{ ok: true; adapter: string } | { ok: false; reason: string }>;
export function load(source: Source | Source[], options?: LoadOptions): Promise<Model>;
/** Starts Python before a model is chosen. */
export function warm(): void;
/** Models in the browser's storage; `whole` ones load without a network. */
export function saved(): Promise<{ url: string; name: string; size: number; loaded: number; whole: boolean }[]>;
/** Removes a model from the browser's storage. */
export function forget(url: string | URL): Promise<void>;
