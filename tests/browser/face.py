"""The face of web/wgemma.js as the tests use it: load, chat and look at numbers from Python.

Errors come back as values, so that a test can look at their code and sentence.
"""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LIMIT = 120_000  # milliseconds: a page that hangs fails its test instead of keeping everybody waiting

# What every script below may use: `w` is the module, `model` what was loaded last.
PRELUDE = """async (limit) => {
  globalThis.w = await import("/wgemma.js");
  globalThis.stages = [];
  globalThis.soon = (work) => {
    const late = () => new Error(`nothing came in ${limit} ms; the last load told ${JSON.stringify(stages.at(-1))}`);
    return Promise.race([work, new Promise((_, reject) => setTimeout(() => reject(late()), limit))]);
  };
  globalThis.attempt = async (work) => {
    try { return {value: await work()}; } catch (error) { return {code: error.code, message: error.message}; }
  };
  globalThis.base64 = (floats) => new Uint8Array(floats.buffer).toBase64();
  globalThis.loadModel = async (source, options) => {
    globalThis.model?.close();
    globalThis.stages = [];
    const began = performance.now();
    const onProgress = (told) => {
      if (stages.at(-1)?.stage === told.stage) stages.pop();
      stages.push({...told, at: performance.now() - began});
    };
    const loaded = await attempt(() => w.load(source, {...options, onProgress}));
    globalThis.model = loaded.value;
    return loaded.value ? {info: model.info, took: performance.now() - began, stages} : loaded;
  };
}"""

CHAT = """async ([messages, options, stopAfter]) => {
  const stop = new AbortController();
  const parts = [];
  if (stopAfter < 0) setTimeout(() => stop.abort(), -stopAfter);
  const outcome = await attempt(async () => {
    for await (const part of model.chat(messages, {...options, signal: stop.signal})) {
      parts.push({...part, at: performance.now()});
      if (parts.length === stopAfter) stop.abort();
    }
  });
  return {...outcome, parts};
}"""


class Face:
    """One page with the module imported."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []  # every address that was asked for
        page.on("request", lambda request: self.requests.append(request.url))
        page.evaluate(PRELUDE, LIMIT)

    def reload(self) -> None:
        self.page.reload()
        self.page.evaluate(PRELUDE, LIMIT)

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(f"(given) => soon(({script})(given))", argument)

    def load(self, source: str, **options: Any) -> Any:
        """Loads a model from an address: its info, the stages on the way, and the milliseconds it took."""
        told = self.attempt(source, **options)
        assert "info" in told, told
        return told

    def attempt(self, source: Any, **options: Any) -> Any:
        """What `load` told, or the error's code and message."""
        return self.run("([source, options]) => loadModel(source, options)", [source, options])

    def chat(self, messages: Any, stop_after: int = 0, **options: Any) -> Any:
        """The parts of a reply, and the error if there was one; it is stopped after so many parts, or, where the number
        is negative, milliseconds."""
        return self.run(CHAT, [messages, options, stop_after])

    def floats(self, expression: str, argument: Any = None) -> Floats:
        """What an expression over `given` gives, as numbers."""
        text = self.run(f"async (given) => base64(await ({expression}))", argument)
        return np.frombuffer(base64.b64decode(text), np.float32)

    def logits(self, ids: list[int]) -> Floats:
        return self.floats("model.logits(given)", ids).reshape(len(ids), -1)
