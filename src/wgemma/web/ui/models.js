/**
 * The models to choose from: the server's, those stored in this browser, opened files. And whether they fit.
 *
 * @typedef {{key: string, name: string, group: string, url?: string, files?: File[], projector?: File | string, size: number,
 *   quantisation: string, parameters: number, capabilities: string[], sha256?: string,
 *   settings: Record<string, number>, system: string, messages: import("../wgemma").Message[], adapters: string[],
 *   embedded: boolean}} Entry
 */

import { partUrls, wholeName } from "../parts.js";
import { saved } from "../wgemma.js";
import { bytes } from "./format.js";
import { NUMBERS, numberProblem } from "./settings.js";

export const GROUPS = ["Built in", "On this computer", "Kept in this browser", "Opened files"];

/** @returns {Promise<Entry[]>} */
export async function offeredModels() {
  const offered = (await list()).map(fromServer).filter((entry) => entry !== null);
  const known = new Set(offered.map((entry) => absolute(entry.url ?? "")));
  const kept = joined((await saved().catch(() => [])).filter((file) => file.whole));
  return unique([...offered, ...kept.filter((file) => !known.has(absolute(file.url))).map(fromStorage)]);
}

/** @param {string} url */
const absolute = (url) => new URL(url, location.href).href;

/** The server's models.json; empty if there is none. @returns {Promise<any[]>} */
async function list() {
  try {
    const answer = await fetch("./models.json");
    const value = answer.ok ? await answer.json() : [];
    return Array.isArray(value) ? value : [];
  } catch {
    return [];
  }
}

/** @param {any} record @returns {Entry | null} */
function fromServer(record) {
  if (typeof record?.name !== "string" || typeof record.url !== "string") return null;
  const embedded = record.embedded === true;
  const digest = /^[0-9a-f]{64}$/.test(record.digest) ? record.digest : undefined;
  return {
    key: record.name,
    name: record.name,
    group: embedded ? GROUPS[0] : GROUPS[1],
    url: record.url,
    ...(typeof record.projector === "string" && { projector: record.projector }),
    size: Number(record.size) || 0,
    quantisation: String(record.quantisation ?? ""),
    parameters: Number(record.parameters) || 0,
    capabilities: Array.isArray(record.capabilities) ? record.capabilities.map(String) : [],
    // On the same computer, hashing gigabytes takes longer than sending them.
    sha256: embedded || !isLoopback() ? digest : undefined,
    settings: ownSettings(record.settings),
    system: typeof record.system === "string" ? record.system : "",
    messages: Array.isArray(record.messages) ? record.messages : [],
    adapters: Array.isArray(record.adapters) ? record.adapters.map(String) : [],
    embedded,
  };
}

/** @param {any} value */
function ownSettings(value) {
  const names = Object.keys(NUMBERS).filter((name) => value && numberProblem(name, value[name]) === "");
  return Object.fromEntries(names.map((name) => [name, value[name]]));
}

const isLoopback = () => /^(localhost|127\.|\[::1\])/.test(location.hostname);

/** @param {{url: string, name: string, size: number}} file @returns {Entry} */
function fromStorage({ url, name, size }) {
  return { ...bare(name, GROUPS[2], size), url };
}

/**
 * Stored files with the parts of a model as one, under its first part's address; incomplete ones are left out.
 * @param {{url: string, name: string, size: number}[]} files
 */
function joined(files) {
  const sizes = new Map(files.map(({ url, size }) => [url, size]));
  return files.flatMap((file) => {
    const urls = partUrls(file.url);
    if (urls[0] !== file.url || !urls.every((url) => sizes.has(url))) return [];
    return [{ ...file, name: wholeName(file.name), size: urls.reduce((sum, url) => sum + (sizes.get(url) ?? 0), 0) }];
  });
}

/**
 * Opened files, the parts of one model; its towers may be in another.
 * @param {File[]} files @param {File} [projector] @returns {Entry}
 */
export function fromFiles(files, projector) {
  const size = files.reduce((sum, file) => sum + file.size, 0);
  return { ...bare(wholeName(files[0].name), GROUPS[3], size), files, projector };
}

/** @param {string} name @param {string} group @param {number} size @returns {Entry} */
function bare(name, group, size) {
  const facts = { quantisation: "", parameters: 0, capabilities: [], settings: {}, embedded: false };
  return { key: name, name, group, size, ...facts, system: "", messages: [], adapters: [] };
}

/**
 * Makes keys unique.
 * @template {{key: string, name: string}} T @param {T[]} entries
 */
export function unique(entries) {
  const seen = new Set();
  for (const entry of entries) {
    entry.key = entry.name;
    for (let i = 2; seen.has(entry.key); i++) entry.key = `${entry.name} (${i})`;
    seen.add(entry.key);
  }
  return entries;
}

/** 5 123 178 051 → "5.1B" @param {number} value */
export function count(value) {
  for (const [limit, unit] of /** @type {[number, string][]} */ ([
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "K"],
  ])) {
    if (value >= limit) return `${(value / limit).toFixed(value < 100 * limit ? 1 : 0)}${unit}`;
  }
  return String(value);
}

/** @param {Entry} entry */
export function facts(entry) {
  const senses = [entry.capabilities.includes("vision") && "sees", entry.capabilities.includes("audio") && "hears"];
  return [
    entry.parameters && `${count(entry.parameters)} parameters`,
    entry.quantisation,
    entry.size && bytes(entry.size),
    ...senses,
  ].filter(Boolean);
}

/**
 * Whether a model will fit. Browsers only say how much memory the computer has, rounded and capped, and nothing about
 * the GPU's.
 * @param {number} size @param {number | undefined} gigabytes `navigator.deviceMemory`
 * @returns {{level: "fits"|"tight"|"large"|"unknown", text: string}}
 */
export function fit(size, gigabytes) {
  const need = 1.1 * size + 0.2e9; // the file, the KV cache, working memory
  const needs = `needs about ${bytes(need)} of GPU memory`;
  if (need < 1.5e9) return { level: "fits", text: "fits almost anywhere" };
  if (!gigabytes) return { level: "unknown", text: needs };
  const memory = gigabytes * 1e9;
  const capped = gigabytes === 8 || gigabytes === 32; // browsers report no more than this
  if (need < 0.6 * memory) return { level: "fits", text: `should fit: ${needs}` };
  if (need < 0.9 * memory) return { level: "tight", text: `may be tight: ${needs}` };
  if (capped) return { level: "unknown", text: needs };
  return { level: "large", text: `probably too large: ${needs}, and this computer has about ${gigabytes} GB` };
}
