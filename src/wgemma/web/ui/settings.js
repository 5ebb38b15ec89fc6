/**
 * A chat's settings: system prompt, sampling, thinking, tools, the answer's format. Data only; the panel is settings_panel.js.
 *
 * A number that is null falls back to the model's own setting. New chats start with the last settings.
 *
 * @typedef {{system: string, think: boolean, tools: string, format: string, temperature: number | null, topK: number | null,
 *   topP: number | null, minP: number | null, repeatPenalty: number | null, seed: number | null,
 *   maxTokens: number | null}} Settings
 */

import { remembered, rememberedJson } from "./remembered.js";

/** @type {Settings} */
export const DEFAULTS = Object.freeze({
  system: "",
  think: false,
  tools: "",
  format: "",
  temperature: null,
  topK: null,
  topP: null,
  minP: null,
  repeatPenalty: null,
  seed: null,
  maxTokens: null,
});

/**
 * The numbers in the order of the panel: label, range, Gemma's default, and what they do.
 * @type {Record<string, {label: string, least: number, most: number, whole?: boolean, step: number, own: string,
 *   hint: string}>}
 */
export const NUMBERS = {
  temperature: {
    label: "Temperature",
    least: 0,
    most: 100,
    step: 0.1,
    own: "1.0",
    hint: "0 always picks the likeliest token",
  },
  topK: {
    label: "Top-k",
    least: 0,
    most: 2 ** 31,
    whole: true,
    step: 1,
    own: "64",
    hint: "pick among this many tokens",
  },
  topP: { label: "Top-p", least: 0, most: 1, step: 0.01, own: "0.95", hint: "pick among this much probability" },
  minP: { label: "Min-p", least: 0, most: 1, step: 0.01, own: "0", hint: "drop tokens less likely than this" },
  repeatPenalty: {
    label: "Repeat penalty",
    least: 0.001,
    most: 1000,
    step: 0.05,
    own: "1.0",
    hint: "above 1 repeats less",
  },
  seed: {
    label: "Seed",
    least: -1,
    most: Number.MAX_SAFE_INTEGER,
    whole: true,
    step: 1,
    own: "random",
    hint: "same seed, same answer; −1 is random",
  },
  maxTokens: {
    label: "Longest answer",
    least: 1,
    most: 2 ** 31,
    whole: true,
    step: 64,
    own: "no limit",
    hint: "in tokens",
  },
};

const KEY = "wgemma.settings";

/** Settings from untrusted input: invalid values fall back to the default. @param {any} value @returns {Settings} */
export function settingsFrom(value) {
  /** @type {any} */
  const out = { ...DEFAULTS };
  if (!value || typeof value !== "object") return out;
  for (const name of ["system", "tools", "format"])
    if (typeof value[name] === "string") out[name] = value[name].slice(0, 200_000);
  out.think = value.think === true;
  for (const name of Object.keys(NUMBERS)) if (numberProblem(name, value[name]) === "") out[name] = value[name];
  return out;
}

/** What is wrong with a number, or "". @param {string} name @param {unknown} value */
export function numberProblem(name, value) {
  const { label, least, most, whole } = NUMBERS[name];
  const good = typeof value === "number" && value >= least && value <= most && (!whole || Number.isInteger(value));
  const limit = most > 1e6 ? `${least} or more` : `from ${least} to ${most}`;
  return good ? "" : `${label} must be a ${whole ? "whole " : ""}number, ${limit}.`;
}

/** The settings of a new chat. @returns {Settings} */
export function lastSettings() {
  return settingsFrom(rememberedJson(KEY));
}

/** @param {Settings} settings */
export function keepSettings(settings) {
  remembered(KEY, JSON.stringify(settings));
}

/**
 * Parses tools from JSON: a list of functions, bare or as {"type": "function", "function": …}.
 * @param {string} text @returns {object[] | undefined}
 */
export function parseTools(text) {
  if (!text.trim()) return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not JSON: ${/** @type {Error} */ (error).message}.`);
  }
  const list = Array.isArray(value) ? value : [value];
  for (const [i, tool] of list.entries()) {
    const name = tool?.function?.name ?? tool?.name;
    if (typeof name !== "string" || !name) {
      throw new Error(
        `Tool ${i + 1} has no name. Write {"type": "function", "function": {"name": …, "parameters": {…}}}.`,
      );
    }
  }
  return list.map((tool) => (tool.function ? tool : { type: "function", function: tool }));
}

/**
 * Parses the answer's format: a JSON schema, or the word json.
 * @param {string} text @returns {object | boolean | "json" | undefined}
 */
export function parseFormat(text) {
  const word = text.trim();
  if (!word) return undefined;
  if (word === "json") return "json";
  let value;
  try {
    value = JSON.parse(word);
  } catch (error) {
    throw new Error(`The answer format is not JSON: ${/** @type {Error} */ (error).message}.`);
  }
  if (value === null || Array.isArray(value) || !["object", "boolean"].includes(typeof value)) {
    throw new Error('The answer format is no schema. Write {"type": "object", "properties": {…}}, or json.');
  }
  return value;
}

/** The options of `model.chat`. @param {Settings} settings */
export function options(settings) {
  /** @type {import("../wgemma").ChatOptions & Record<string, unknown>} */
  const out = { think: settings.think };
  const tools = parseTools(settings.tools);
  if (tools?.length) out.tools = tools;
  const format = parseFormat(settings.format);
  if (format !== undefined) out.format = format;
  for (const name of Object.keys(NUMBERS)) {
    const value = settings[/** @type {keyof Settings} */ (name)];
    if (value !== null) out[name] = value;
  }
  return out;
}
