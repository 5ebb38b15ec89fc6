// The public types (web/*.d.ts), as a page uses them and beside the code they describe. Checked by `make lint`, never run.

import { bench, report } from "../../src/wgemma/web/bench.js";
import type * as BenchTypes from "../../src/wgemma/web/bench.js";
import { forget, load, Model, saved, supported, warm, WgemmaError } from "../../src/wgemma/web/wgemma.js";
import type * as Types from "../../src/wgemma/web/wgemma.js";

// -- the code has what is declared, and declares what it has

import * as benchCode from "code/bench";
import * as code from "code/wgemma";

type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;

code satisfies Omit<typeof Types, "Model">; // only `load` makes those
benchCode satisfies typeof BenchTypes;
true satisfies Same<keyof typeof code, keyof typeof Types>;
true satisfies Same<keyof typeof benchCode, keyof typeof BenchTypes>;
true satisfies Same<keyof code.Model, keyof Model>;

// -- a page

async function chats(output: HTMLElement, image: File, signal: AbortSignal) {
  warm();
  const able = await supported();
  if (!able.ok) throw new Error(able.reason);
  const model: Model = await load("models/gemma.gguf", {
    signal,
    sha256: "00".repeat(32),
    ple: "host",
    onProgress: ({ stage, loaded, total, text }) => (output.textContent = stage === "load" ? `${loaded / total}` : text),
  });
  const parts = [{ type: "text", text: "What is this?" } as const, { type: "image", image, budget: 280 } as const];
  for await (const part of model.chat([{ role: "user", content: parts }], { maxTokens: 9, adapter: null })) {
    output.append(part.text);
    if (part.finishReason === "stop") output.append(String(part.usage?.generated));
  }
  const format = { type: "object", properties: { city: { type: "string" } } };
  model.chat([], { format, tools: [{ type: "function" }], toolChoice: "required", parallelToolCalls: false });
  model.chat([], { format: "json" });
  // @ts-expect-error: there is no such format
  model.chat([], { format: "yaml" });
  const ids = await model.tokenize("Hello");
  const logits: Float32Array = await model.logits(ids, { adapter: { pirate: 0.5 } });
  output.append(`${logits.length / ids.length === model.info.vocabulary}`, model.info.adapter);
  await model.encodeImage(image, 70);
  await model.encodeAudio(new Float32Array(16_000));
  // @ts-expect-error: there is no such role
  model.chat([{ role: "wizard", content: "" }]);
  // @ts-expect-error: temperatures are numbers
  model.chat([], { temperature: "hot" });
  await model.reset();
  await model.close();
}

async function learns(model: Model, lessons: Blob) {
  const { bad, steps } = await model.examine(lessons, { epochs: 1 });
  if (bad.length) throw new WgemmaError("data", `${bad[0].line}: ${bad[0].reason}`);
  for await (const step of model.finetune(lessons, { steps, rank: 16, schedule: "linear" })) {
    if ("adapter" in step) await model.loadAdapter(step.adapter.gguf, { name: "pirate" });
    else console.log(step.loss, step.secondsLeft);
  }
  const peft: [string, string] = ["adapter_config.json", "adapter_model.safetensors"];
  await model.unloadAdapter(await model.loadAdapter(peft, { scale: 0.8 }));
}

async function measures(model: Model) {
  const result = await bench(model, { onProgress: ({ text, share }) => console.log(text, share ?? 0) });
  return report(result);
}

async function clears() {
  for (const { url, whole } of await saved()) if (!whole) await forget(url);
}

function explains(error: unknown) {
  if (!(error instanceof WgemmaError)) throw error;
  // @ts-expect-error: there is no such code
  if (error.code === "bad-luck") return "";
  return error.code === "quota" ? "Load it without keeping it." : error.message;
}

export { chats, clears, explains, learns, measures };
