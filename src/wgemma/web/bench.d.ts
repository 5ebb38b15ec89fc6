// The types of bench.js. See docs/browser.md.

import type { Model, ModelInfo } from "./wgemma";

/** What bench needs of a model. */
export type Benchable = Pick<Model, "info" | "chat" | "tokenize" | "stats">;

export interface BenchOptions {
  /** Gives up when aborted. */
  signal?: AbortSignal;
  /** What is being measured, to show, and how much of it all is done: from 0 to 1, or null while that is not known. */
  onProgress?: (progress: { text: string; share: number | null }) => void;
}

export type Stage = ModelInfo["loading"]["stages"][number];

export interface Result {
  /** Of wgemma. */
  version: string;
  model: Pick<ModelInfo, "name" | "quantisation" | "parameters" | "precision" | "context" | "bytes" | "table">;
  adapter: { name: string; features: string[]; limits: Record<string, number> };
  browser: string;
  /** How long loading took, in milliseconds, stage by stage. */
  loading: { total: number; stages: Stage[] };
  /** Tokens of a story, and how fast they came after the first; 0 if there were fewer than two. */
  decode: { tokens: number; tokensPerSecond: number };
  /** Prompts of several lengths: tokens that were computed, tokens that were not, and the time to the first token. */
  prompts: { tokens: number; reused: number; ms: number; tokensPerSecond: number }[];
  /** Bytes of Python's memory and on the GPU. */
  memory: { heap: number; gpu: number };
  /** Sentences about what was cut or left out. */
  notes: string[];
  /** The options of `load` that bench.html was asked to use. */
  settings?: Record<string, string>;
}

/** Measures a loaded model, without its adapters. */
export function bench(model: Benchable, options?: BenchOptions): Promise<Result>;
/** The result as a Markdown table. */
export function report(result: Result): string;
/** Parts of that text: quantisation and size; what the model ran on; rates, times and the bytes of a stage. */
export function modelFacts(result: Result): string;
export function facts(result: Result): [string, string][];
export function rate(tokensPerSecond: number): string;
export function time(ms: number): string;
export function moved(stage: Stage): string[];
export function browserName(userAgent: string): string;
