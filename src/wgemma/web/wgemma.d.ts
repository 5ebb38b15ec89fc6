// The types of wgemma.js. See docs/browser.md.

export type Source = string | URL | Blob | FileSystemFileHandle;

export interface Progress {
  /** start: Python is being started; check: the GPU computes small problems; load: weights go to the GPU. */
  stage: "start" | "download" | "check" | "load" | "ready";
  /** Bytes, in the stages that count them. */
  loaded: number;
  total: number;
  /** The same, to show. */
  text: string;
}

export interface LoadOptions {
  onProgress?: (progress: Progress) => void;
  /** Gives up when aborted; what was downloaded is kept. */
  signal?: AbortSignal;
  /** What to call the model; its file's name otherwise. */
  name?: string;
  /** The most tokens of a chat; what the model allows otherwise. */
  context?: number;
  /** Whether a download is kept in the browser's storage, where it is found again (the default). */
  save?: boolean;
  /** What the file must be, in hexadecimal; a download that is something else is refused. */
  sha256?: string;
  /** The file of its vision and audio towers, where they are not in the model's own. */
  projector?: Source;
  /** What keys and values are kept in: "f16" (the default), or "f32" for twice the memory. */
  kv?: "f16" | "f32";
  /** "fast" (the default): answers from inputs in eight bits where the GPU multiplies those; or "exact". */
  precision?: "fast" | "exact";
  /**
   * Where the per-layer table of E2B and E4B lies: on the GPU, or in the file, from which a row is fetched for every token.
   * "auto" tries the GPU, but for a large table on phones and small machines, and falls back to the file.
   */
  ple?: "auto" | "gpu" | "host";
}

export interface ModelInfo {
  /** Of wgemma. */
  version: string;
  name: string;
  parameters: number;
  quantisation: string;
  precision: "fast" | "exact";
  context: number;
  vocabulary: number;
  sees: boolean;
  hears: boolean;
  /** The GPU, what it can do and what it grants, the last in WebGPU's units. */
  adapter: string;
  features: string[];
  limits: Record<string, number>;
  /** Where the per-layer table lies; null in models without one. */
  table: "gpu" | "host" | null;
  /** Where the time went, in milliseconds. `reading` is what of it was spent waiting for the file's bytes. */
  loading: { total: number; stages: { name: string; ms: number; bytes?: number; reading?: number }[] };
  /** Of the model's files, and on the GPU. */
  bytes: number;
  gpuBytes: number;
}

export interface ToolCall {
  name: string;
  arguments: Record<string, unknown>;
  /** Why the arguments could not be read, and the markup as it was written. */
  error: string | null;
  raw: string;
}

export type ContentPart =
  | { type: "text"; text: string }
  | { type: "image"; image: Blob | ImageBitmap | ImageData; budget?: 70 | 140 | 280 | 560 | 1120 }
  | { type: "audio"; audio: Blob | AudioBuffer | Float32Array };

/** As in Python: role, content, and for calls of tools tool_calls, tool_call_id, name. */
export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "model" | "tool";
  /** A tool's result may also be an object. */
  content?: string | ContentPart[] | Record<string, unknown> | null;
  [more: string]: unknown;
}

export interface ChatOptions {
  tools?: object[];
  think?: boolean;
  /** Ends the reply; its last part says "cancelled". */
  signal?: AbortSignal;
  maxTokens?: number;
  thinkingBudget?: number;
  stop?: string | string[];
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

/** The adapters of a call: one by its name, scales by name, null for the bare model; without it all that are loaded. */
export type AdapterChoice = string | Record<string, number> | null;

export interface Part {
  kind: "thinking" | "content" | "tool_call";
  text: string;
  toolCall?: ToolCall;
  /** What follows is in the last part only. */
  finishReason?: "stop" | "length" | "tool" | "cancelled";
  /** Tokens of the prompt, how many of them were computed before, and tokens of the reply. */
  usage?: { prompt: number; reused: number; generated: number };
  /** Milliseconds to the first part; tokens per second after it. */
  timing?: { firstToken: number; tokensPerSecond: number };
}

/** All can be left out. */
export interface TrainingSettings {
  /** 16. The more, the more can be learnt, and the larger the adapter. */
  rank?: number;
  /** 32. The adapter counts alpha / rank times. */
  alpha?: number;
  /** "q,k,v,o,gate,up,down"; also ple_gate, ple_projection, all. */
  targets?: string | string[];
  /** 2e-4, the learning rate. */
  lr?: number;
  schedule?: "cosine" | "linear" | "constant";
  /** 0.05: below 1 a share of the steps, else steps. */
  warmup?: number;
  /** 3, unless there are `steps`. */
  epochs?: number;
  steps?: number;
  /** 8 sequences make a step. */
  batch?: number;
  /** 1024 tokens of a sequence; longer examples are cut. */
  seq?: number;
  /** Several short examples in one sequence (the default). */
  packing?: boolean;
  seed?: number;
  dropout?: number;
  rslora?: boolean;
  weightDecay?: number;
  clip?: number;
  /** A share of the examples to validate with, 0 by default. */
  validation?: number;
  /** Steps between two validations. */
  saveEvery?: number;
  /** Leaves bad lines out, which stop everything otherwise. */
  skipBad?: boolean;
  /** A system text for the conversations that have none. */
  system?: string;
  /** Ends the training after the step that is under way. */
  signal?: AbortSignal;
}

export interface Examined {
  examples: number;
  /** Examples that are held out for validation. */
  held: number;
  tokens: number;
  /** Tokens that are learnt. */
  targets: number;
  /** Examples that are cut. */
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
  /** Of the gradients, before they were clipped. */
  norm: number;
  tokensPerSecond: number;
  secondsLeft: number;
  /** Bytes on the GPU. */
  memory: number;
  /** The loss of the examples held out, where it was computed after this step. */
  validation: number | null;
}

/** What comes last, also of a training that was stopped; an error follows where it could not go on. */
export interface Trained {
  /** Of every step that was made. */
  losses: number[];
  validation: [step: number, loss: number][];
  /** How many steps were to be made, and whether there were fewer. */
  steps: number;
  stopped: boolean;
  /** For llama.cpp and Ollama; for PEFT, two files; what was done, in Markdown; the losses, drawn. */
  adapter: { gguf: File; config: File; safetensors: File; card: File; curve: File };
}

/** Made by `load`. */
export class Model {
  private constructor();
  readonly info: ModelInfo;
  /** The adapters that are loaded, and their scales. */
  readonly adapters: Record<string, number>;
  /** The reply, part by part; leaving the loop ends it. One at a time: a second waits for its turn. */
  chat(messages: Message[], options?: ChatOptions): AsyncGenerator<Part, void, void>;
  /** [ids.length × vocabulary], after the final soft cap. */
  logits(ids: Iterable<number>, options?: { adapter?: AdapterChoice }): Promise<Float32Array>;
  tokenize(text: string): Promise<number[]>;
  /** [tokens × width], as the decoder gets them. */
  encodeImage(image: Blob | ImageBitmap | ImageData, budget?: number): Promise<Float32Array>;
  encodeAudio(audio: Blob | AudioBuffer | Float32Array): Promise<Float32Array>;
  /** Loads a LoRA adapter: a GGUF file, or PEFT's adapter_config.json and adapter_model.safetensors. Gives its name. */
  loadAdapter(source: Source | [Source, Source], options?: { name?: string; scale?: number }): Promise<string>;
  unloadAdapter(name: string): Promise<void>;
  /** What is in a file of examples, one JSON object per line. */
  examine(data: Blob | string, settings?: TrainingSettings): Promise<Examined>;
  /** Trains a LoRA adapter; the last value has it, all others tell of steps. */
  finetune(data: Blob | string, settings?: TrainingSettings): AsyncGenerator<TrainingStep | Trained, void, void>;
  /** Forgets the chat. */
  reset(): Promise<void>;
  /** Bytes of Python's memory and on the GPU. */
  stats(): Promise<{ heap: number; gpu: number }>;
  /** Gives everything back; the Worker stays for the next model. */
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

/** The message is a sentence to show as it is. */
export class WgemmaError extends Error {
  constructor(code: ErrorCode, message: string);
  readonly code: ErrorCode;
}

export function supported(): Promise<{ ok: true; adapter: string } | { ok: false; reason: string }>;
export function load(source: Source, options?: LoadOptions): Promise<Model>;
/** Starts Python before a model is chosen. */
export function warm(): void;
/** The models in the browser's storage; `whole` ones need no network. */
export function saved(): Promise<{ url: string; name: string; size: number; loaded: number; whole: boolean }[]>;
/** Removes one from the browser's storage. */
export function forget(url: string | URL): Promise<void>;
