"""The face of web/wgemma.js as the tests use it: load, chat and look at numbers from Python.

Errors come back as values, so that a test can look at their code and sentence.
"""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# What every script below may use: `w` is the module, `model` what was loaded last.
PRELUDE = """async () => {
  globalThis.w = await import("/wgemma.js");
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
        page.evaluate(PRELUDE)

    def reload(self) -> None:
        self.page.reload()
        self.page.evaluate(PRELUDE)

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def load(self, source: str, **options: Any) -> Any:
        """Loads a model from an address: its info, the stages on the way, and the milliseconds it took."""
        told = self.attempt(source, **options)
        assert "info" in told, told
        return told

    def attempt(self, source: str, **options: Any) -> Any:
        """What `load` told, or the error's code and message."""
        return self.run("([source, options]) => loadModel(source, options)", [source, options])

    def chat(self, messages: Any, stop_after: int = 0, **options: Any) -> Any:
        """The parts of a reply, and the error if there was one; it is stopped after so many parts."""
        return self.run(CHAT, [messages, options, stop_after])

    def floats(self, expression: str, argument: Any = None) -> Floats:
        """What an expression over `given` gives, as numbers."""
        text = self.run(f"async (given) => base64(await ({expression}))", argument)
        return np.frombuffer(base64.b64decode(text), np.float32)

    def logits(self, ids: list[int]) -> Floats:
        return self.floats("model.logits(given)", ids).reshape(len(ids), -1)
