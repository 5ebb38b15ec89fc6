// The types of bench.js. See docs/browser.md.

import type { Model, ModelInfo } from "./wgemma";

/** The part of a model that `bench` uses. */
export type Benchable = Pick<Model, "info" | "chat" | "tokenize" | "stats">;

export interface BenchOptions {
  /** Stops the benchmark. */
  signal?: AbortSignal;
  /** What is being measured, ready to show, and how much is done: 0 to 1, or null if not known yet. */
  onProgress?: (progress: { text: string; share: number | null }) => void;
}

export type Stage = ModelInfo["loading"]["stages"][number];

export interface Result {
  /** wgemma's version. */
  version: string;
  model: Pick<ModelInfo, "name" | "quantisation" | "parameters" | "precision" | "context" | "bytes" | "table">;
  adapter: { name: string; features: string[]; limits: Record<string, number> };
  browser: string;
  /** Loading time in milliseconds, by stage. */
  loading: { total: number; stages: Stage[] };
  /** Tokens decoded, and their rate after the first; 0 if there were fewer than two. */
  decode: { tokens: number; tokensPerSecond: number };
  /** Prompts of several lengths: tokens computed, tokens from the KV cache, and time to first token. */
  prompts: { tokens: number; reused: number; ms: number; tokensPerSecond: number }[];
  /** Bytes in Python's heap and on the GPU. */
  memory: { heap: number; gpu: number };
  /** Sentences about what was cut short or skipped. */
  notes: string[];
  /** The options of `load` from bench.html's address. */
  settings?: Record<string, string>;
}

/** Measures a loaded model without its adapters. */
export function bench(model: Benchable, options?: BenchOptions): Promise<Result>;
/** The result as a Markdown table. */
export function report(result: Result): string;
/** Pieces of that report: quantisation and size; what it ran on; rates, times, bytes of a stage. */
export function modelFacts(result: Result): string;
export function facts(result: Result): [string, string][];
export function rate(tokensPerSecond: number): string;
export function time(ms: number): string;
export function moved(stage: Stage): string[];
export function browserName(userAgent: string): string;
