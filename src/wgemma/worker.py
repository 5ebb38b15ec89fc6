"""The engine in a web page: answers messages from web/worker.js through the async API.

Each Web Worker has one `Worker`, which holds one model at a time. Messages are answered in order, except `stop`, which
ends the current reply or load. Every error is sent as a code and a sentence, never as a traceback.
"""

import asyncio
import json
import math
import re
import traceback
from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Any

from wgemma.api import Model, Part, Usage
from wgemma.engine.adapting import ALL
from wgemma.engine.opening import bytes_to_read, table_choices
from wgemma.engine.options import Options
from wgemma.errors import (
    AdapterError,
    BadLogits,
    CutOff,
    DataError,
    DeviceError,
    DeviceLost,
    Error,
    GgufError,
    MediaError,
    ModelError,
    OutOfMemory,
    SessionError,
    SettingsError,
    SourceError,
    TrainingError,
)
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.files.manifests import ROLES, is_message
from wgemma.files.page_sources import PageError, PagePixels, PageSource
from wgemma.files.parts import whole_name
from wgemma.files.sounds import ARRAY_RATE, Sound
from wgemma.gpu.browser import BrowserDevice
from wgemma.loading import Loading, assemble
from wgemma.model.config import Config
from wgemma.selftest import verdict
from wgemma.stages import Stages
from wgemma.text.parts import content_of
from wgemma.version import __version__

# web/trouble.js's code for an error: the first class that matches.
CODES: tuple[tuple[type[Exception], str], ...] = (
    (CutOff, "cut-off"),
    (GgufError, "not-gguf"),
    (SourceError, "network"),
    (OutOfMemory, "out-of-memory"),
    (DeviceLost, "device-lost"),
    (DeviceError, "no-webgpu"),
    (ModelError, "model"),
    (BadLogits, "model"),
    (MediaError, "media"),
    (AdapterError, "adapter"),
    (DataError, "data"),
    (TrainingError, "training"),
    (Error, "settings"),
)

Tell = Callable[[str, Any], None]  # sends progress or part of an answer


class Worker:
    """Holds at most one model, and its device. `home` is the interface web/worker.js provides."""

    def __init__(self, home: Any) -> None:
        self._home = home
        self._model: Model | None = None
        self._device: BrowserDevice | None = None
        self._turn = asyncio.Lock()
        self._stops: dict[int, asyncio.Event] = {}
        verdict.keeper = _PageKeeper(home.verdicts)

    async def answer(self, order: Any, post: Any) -> None:
        """Answers a message through `post(kind, json)` or `post(kind, "", floats)`; the last is a result or error."""
        if order.verb == "stop":
            if order.of in self._stops:
                self._stops[order.of].set()
            return
        if order.verb == "unload":
            for stop in self._stops.values():
                stop.set()
        self._stops[order.id] = asyncio.Event()
        try:
            async with self._turn:
                value = await getattr(self, f"_{order.verb}")(order, lambda kind, value: post(kind, to_json(value)))
            if isinstance(value, bytes):
                post("result", "", value)
            else:
                post("result", to_json(value))
        except Exception as error:
            post("error", to_json({"code": code_of(error), "message": sentence_of(error)}))
        finally:
            del self._stops[order.id]

    # -- loading

    async def _load(self, order: Any, tell: Tell) -> dict[str, Any]:
        await self._close()
        parts = [PageSource(source) for source in order.source]
        sources = [*parts, PageSource(order.projector)] if order.projector else parts
        try:
            return await self._open(sources, len(parts), order, tell)
        except BaseException as error:
            await self._close()
            for source in sources:
                if isinstance(error, GgufError):
                    await source.discard()  # not worth caching
                else:
                    source.close()
            raise

    async def _open(self, sources: list[PageSource], parts: int, order: Any, tell: Tell) -> dict[str, Any]:
        """Opens a model from its parts, often one, and its projector, if there is one."""
        stages = Stages()
        stages.begin("header")
        model = sources[:parts]
        name = order.name or whole_name(model[0].name)
        if parts == 1:
            model[0].name = name
        opened = [await Gguf.aopen(model), *[await Gguf.aopen(source) for source in sources[parts:]]]
        stages.begin("GPU")
        self._device = await BrowserDevice.open(self._home.openGpu, self._home.browser)
        self._device.roomy = self._device.roomy and not order.small
        asked = {"kv": order.kv, "precision": order.precision, "ple": order.ple}
        options = Options(context=order.context or None, **asked)
        tell("progress", {"stage": "check", "loaded": 0, "total": 0})
        config = Config.from_gguf(opened[0])
        on_gpu = (await table_choices(self._device, opened[0], config, options))[0]
        total = bytes_to_read(config, opened[0].tensors, table_on_gpu=on_gpu)
        progress = _Progress(total, tell, self._stops[order.id])
        files = ModelFiles(name, name, system=order.system, messages=_own_messages(order.messages))
        for source in model:
            source.waited = 0.0
        loading = Loading(options, self._device, progress=progress.add, stages=stages)
        self._model = await assemble(files, opened, loading)
        stages.begin("storage")
        for source in sources:
            await source.finished()
        stages.end()
        tell("progress", {"stage": "ready", "loaded": progress.total, "total": progress.total})
        taken = [{"name": "open", "ms": order.opened}, {"name": "Python", "ms": order.waited}]
        for stage in stages.done:
            taken.append({"name": stage.name, "ms": 1e3 * stage.seconds})
            if stage.name == "weights":
                taken[-1] |= {"bytes": progress.moved, "reading": 1e3 * sum(source.waited for source in model)}
        timing = {"total": sum(stage["ms"] for stage in taken), "stages": taken}
        return self._info(self._model, self._device, opened) | {"loading": timing}

    def _info(self, model: Model, device: BrowserDevice, opened: list[Gguf]) -> dict[str, Any]:
        engine = model.backend.runner.engine
        inputs = engine.weights.inputs
        return {
            "version": __version__,
            "name": model.name,
            "parameters": sum(tensor.elements for tensor in opened[0].tensors.values()),
            "quantisation": opened[0].quantisation,
            "precision": engine.options.precision,
            "context": model.backend.context,
            "vocabulary": len(model.tokenizer),
            "sees": model.sees,
            "hears": model.hears,
            "adapter": model.backend.name,
            "features": sorted(device.features),
            "limits": asdict(device.limits),
            "table": None if inputs is None else "host" if inputs.table is None else "gpu",
            "bytes": sum(gguf.source.size for gguf in opened),
            "gpuBytes": self._on_gpu,
        }

    @property
    def _on_gpu(self) -> int:
        """Bytes allocated on the model's current device."""
        return self._model.backend.runner.device.allocated if self._model else 0

    async def _unload(self, order: Any, tell: Tell) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._model is not None:
            async with self._model.backend.turn():  # nothing is being computed
                self._model.close()
        if self._device is not None:
            self._device.close()
        self._model = self._device = None

    @property
    def model(self) -> Model:
        if self._model is None:
            raise SessionError("no model is loaded. Load one first.")
        return self._model

    # -- chatting

    async def _chat(self, order: Any, tell: Tell) -> None:
        stop = self._stops[order.id]
        options = {_snake(name): value for name, value in order.options.to_py().items() if value is not None}
        messages = [_with_media(message) for message in order.messages.to_py()]
        async for part in until(stop, self.model.achat(messages, cancel=stop, **options)):
            tell("part", shown(part))

    async def _tokenize(self, order: Any, tell: Tell) -> list[int]:
        return self.model.tokenizer.encode(order.text)

    async def _logits(self, order: Any, tell: Tell) -> bytes:
        options = order.options.to_py()
        return await self.model.logit_bytes(order.ids.to_py(), adapter=options.get("adapter", ALL))

    async def _encode(self, order: Any, tell: Tell) -> bytes:
        content = content_of(_media(order.media.to_py()))
        async with self.model.backend.turn():
            return await self.model.backend.encode(content)

    async def _reset(self, order: Any, tell: Tell) -> None:
        await self.model._forget()

    async def _stats(self, order: Any, tell: Tell) -> dict[str, int]:
        return {"heap": self._home.heap(), "gpu": self._on_gpu}

    # -- adapters

    async def _adapt(self, order: Any, tell: Tell) -> dict[str, Any]:
        """Loads an adapter from one source (a GGUF) or two (PEFT's configuration and weights)."""
        sources = [PageSource(source) for source in order.sources]
        target = sources[0] if len(sources) == 1 else tuple(sources)
        try:
            name = await self.model.aload_adapter(target, order.name or None, order.scale)
        finally:
            for source in sources:
                source.close()
        return {"name": name, "adapters": self.model.adapters}

    async def _unadapt(self, order: Any, tell: Tell) -> dict[str, Any]:
        await self.model.aunload_adapter(order.name)
        return {"adapters": self.model.adapters}

    # -- training

    async def _examine(self, order: Any, tell: Tell) -> dict[str, Any]:
        from wgemma.worker_training import examined

        return await examined(self.model, order)

    async def _finetune(self, order: Any, tell: Tell) -> None:
        from wgemma.worker_training import trained

        await trained(self.model, order, tell, self._stops[order.id])


class _PageKeeper:
    """Keeps the verdicts of selftest/verdict.py in the browser's storage."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def read(self) -> str:
        return str(await self._store.read())

    async def write(self, text: str) -> None:
        await self._store.write(text)


# -- progress


class _Progress:
    """Reports how much of the weights is loaded, and aborts the load once `stop` is set."""

    def __init__(self, total: int, tell: Tell, stop: asyncio.Event) -> None:
        self.total = total
        self.loaded = 0
        self.moved = 0  # all bytes moved; more than `total` if a load was retried
        self._tell = tell
        self._stop = stop

    def add(self, nbytes: int) -> None:
        if self._stop.is_set():
            raise SessionError("loading was cancelled.")
        self.moved += nbytes
        self.loaded = min(self.loaded + nbytes, self.total)
        self._tell("progress", {"stage": "load", "loaded": self.loaded, "total": self.total})


async def until(stop: asyncio.Event, parts: Any) -> AsyncIterator[Part]:
    """The parts of a reply. After the first part, the reply ends itself on `stop`; before that it is cancelled from
    here, so that nobody waits for a long prefill."""
    async with aclosing(parts):
        first, stopped = asyncio.ensure_future(anext(parts)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({first, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not first.done():
                first.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await first
        if first.cancelled():
            yield Part("content", finish_reason="cancelled", usage=Usage(0, 0, 0))
            return
        yield await first
        async for part in parts:
            yield part


# -- conversions between page and engine


def shown(part: Part) -> dict[str, Any]:
    """A part in the page's format."""
    told: dict[str, Any] = {"kind": part.kind, "text": part.text}
    if part.tool_call is not None:
        call = part.tool_call
        told["toolCall"] = {"name": call.name, "arguments": call.arguments, "error": call.error, "raw": call.raw}
    if part.finish_reason is not None:
        told["finishReason"] = part.finish_reason
    if part.usage is not None:
        used = part.usage
        told["usage"] = {name: getattr(used, name) for name in ("prompt", "reused", "generated", "dropped")}
        rate = (used.generated - 1) / used.generation_seconds if used.generation_seconds else 0.0
        told["timing"] = {"firstToken": 1e3 * used.prompt_seconds, "tokensPerSecond": rate}
    return told


def _own_messages(given: Any) -> list[dict[str, Any]]:
    """What every chat with the model begins with."""
    messages = given.to_py() if given else []
    if not isinstance(messages, list) or not all(map(is_message, messages)):
        raise SettingsError(f"a model's own messages must each have a role ({', '.join(ROLES)}) and a text.")
    return messages


def _with_media(message: Any) -> Any:
    """A message with its images and audio converted for the engine."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_media(part) if isinstance(part, dict) else part for part in content]}


def _media(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "image" and hasattr(part.get("image"), "rgba"):
        return {**part, "image": PagePixels(part["image"])}
    if part.get("type") == "audio" and part.get("audio") is not None:
        samples = array("f")
        samples.frombytes(bytes(part["audio"]))
        return {**part, "audio": Sound(ARRAY_RATE, 1, samples)}
    return part


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def to_json(value: Any) -> str:
    """JSON that JavaScript can parse: NaN and Inf, which a model may write, become null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def code_of(error: Exception) -> str:
    if isinstance(error, PageError):
        return error.code
    return next((code for kind, code in CODES if isinstance(error, kind)), "worker")


def sentence_of(error: Exception) -> str:
    """The text to show. For an unexpected error, the console gets the full traceback."""
    if isinstance(error, Error):
        return str(error)
    traceback.print_exception(error)
    return f"The engine failed: {type(error).__name__}: {error}. Load the model again; the console has details."
