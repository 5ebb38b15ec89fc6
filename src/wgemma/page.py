"""The engine's door in a web page: answers the messages of web/worker.js by the async API.

One Page lives in one Worker and has one model at a time. Messages are answered one after the other, except `stop`,
which ends the reply or the load that is under way. Every error leaves as a code and a sentence, never as a traceback.
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
from time import perf_counter
from typing import Any

from wgemma import __version__
from wgemma.api import Model, Part
from wgemma.engine import selftest
from wgemma.engine.adapting import ALL
from wgemma.engine.backend import GpuBackend
from wgemma.engine.engine import CHUNK, Options, table_choices
from wgemma.engine.replying import Usage
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
    SourceError,
    TrainingError,
)
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.files.page_sources import PageError, PagePixels, PageSource
from wgemma.files.sounds import ARRAY_RATE, Sound
from wgemma.gpu.browser import BrowserDevice
from wgemma.loading import assemble
from wgemma.model.config import Config, find_tensors
from wgemma.model.text import TABLE
from wgemma.stages import Stages
from wgemma.text.parts import content_of

# The code of web/trouble.js for an error: that of the first class it belongs to.
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

SHORT_CHUNK = 128  # rows of a pass where a long one would keep everybody waiting

Tell = Callable[[str, Any], None]  # sends a message's progress or a part of its answer


class Page:
    """What a Worker holds: at most one model, and the device it is on. `home` is what web/worker.js lends."""

    def __init__(self, home: Any) -> None:
        self._home = home
        self._model: Model | None = None
        self._device: BrowserDevice | None = None
        self._turn = asyncio.Lock()
        self._stops: dict[int, asyncio.Event] = {}
        selftest.keeper = _PageKeeper(home.verdicts)

    async def answer(self, order: Any, post: Any) -> None:
        """Answers one message by `post(kind, json)` or `post(kind, "", floats)`; the last is a result or an error."""
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
        self._close()
        sources = [PageSource(order.source, order.name or "")]
        if order.projector:
            sources.append(PageSource(order.projector))
        try:
            return await self._open(sources, order, tell)
        except BaseException as error:
            self._close()
            for source in sources:
                if isinstance(error, GgufError):
                    await source.discard()  # nobody wants to keep that
                else:
                    source.close()
            raise

    async def _open(self, sources: list[PageSource], order: Any, tell: Tell) -> dict[str, Any]:
        stages = Stages()
        stages.begin("header")
        opened = [await Gguf.aopen(source) for source in sources]
        stages.begin("GPU")
        self._device = await BrowserDevice.open(self._home.openGpu, self._home.browser)
        self._device.roomy = self._device.roomy and not order.small
        chunk = SHORT_CHUNK if self._device.compact else CHUNK
        asked = {"kv": order.kv, "precision": order.precision, "ple": order.ple}
        options = Options(context=order.context or None, chunk=chunk, **asked)
        tell("progress", {"stage": "check", "loaded": 0, "total": 0})
        progress = _Loading(_bytes_to_load(self._device, opened[0], options), tell, self._stops[order.id])
        name = sources[0].name
        files = ModelFiles(name, name)
        sources[0].waited = 0.0
        self._model = await assemble(files, opened, self._device, options, progress.add, stages=stages)
        stages.begin("storage")
        for source in sources:
            await source.finished()
        stages.end()
        tell("progress", {"stage": "ready", "loaded": progress.total, "total": progress.total})
        taken = [{"name": "open", "ms": order.opened}, {"name": "Python", "ms": order.waited}]
        for stage in stages.done:
            taken.append({"name": stage.name, "ms": 1e3 * stage.seconds})
            if stage.name == "weights":
                taken[-1] |= {"bytes": progress.moved, "reading": 1e3 * sources[0].waited}
        loading = {"total": sum(stage["ms"] for stage in taken), "stages": taken}
        return self._info(self._model, self._device, opened) | {"loading": loading}

    def _info(self, model: Model, device: BrowserDevice, opened: list[Gguf]) -> dict[str, Any]:
        assert isinstance(model.backend, GpuBackend)
        inputs = model.backend.engine.weights.inputs
        return {
            "version": __version__,
            "name": model.name,
            "parameters": sum(tensor.elements for tensor in opened[0].tensors.values()),
            "quantisation": opened[0].quantisation,
            "precision": model.backend.engine.options.precision,
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
        """Bytes on the device, which may be another one by now."""
        backend = self._model.backend if self._model else None
        return int(getattr(getattr(backend, "device", None), "allocated", 0))

    async def _unload(self, order: Any, tell: Tell) -> None:
        self._close()

    def _close(self) -> None:
        if self._model is not None:
            self._model.close()
        if self._device is not None:
            self._device.close()
        self._model = self._device = None

    @property
    def model(self) -> Model:
        if self._model is None:
            raise SessionError("no model is loaded.")
        return self._model

    # -- chatting

    async def _chat(self, order: Any, tell: Tell) -> None:
        stop = self._stops[order.id]
        options = {_snake(name): value for name, value in order.options.to_py().items() if value is not None}
        messages = [_with_media(message) for message in order.messages.to_py()]
        clock = _Clock()
        async for part in until(stop, self.model.achat(messages, cancel=stop, **options)):
            tell("part", {**shown(part), **clock.heard(part)})

    async def _tokenize(self, order: Any, tell: Tell) -> list[int]:
        return self.model.tokenizer.encode(order.text)

    async def _logits(self, order: Any, tell: Tell) -> bytes:
        options = order.options.to_py()
        return await self.model.logit_bytes(order.ids.to_py(), adapter=options.get("adapter", ALL))

    async def _encode(self, order: Any, tell: Tell) -> bytes:
        return await self.model.backend.encode(content_of(_media(order.media.to_py())))

    async def _reset(self, order: Any, tell: Tell) -> None:
        self.model.backend.reset()

    async def _stats(self, order: Any, tell: Tell) -> dict[str, int]:
        return {"heap": self._home.heap(), "gpu": self._on_gpu}

    # -- adapters

    async def _adapt(self, order: Any, tell: Tell) -> dict[str, Any]:
        """Loads an adapter: a GGUF in one source, or PEFT's configuration and weights in two."""
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
        from wgemma.page_training import examined

        return await examined(self.model, order)

    async def _finetune(self, order: Any, tell: Tell) -> None:
        from wgemma.page_training import trained

        await trained(self.model, order, tell, self._stops[order.id])


class _PageKeeper:
    """The verdicts of engine/selftest.py, in the browser's storage."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def read(self) -> str:
        return str(await self._store.read())

    async def write(self, text: str) -> None:
        await self._store.write(text)


# -- progress and time


def _bytes_to_load(device: BrowserDevice, gguf: Gguf, options: Options) -> int:
    """What will go to the GPU of a model's file; a table that stays with the host does not."""
    config = Config.from_gguf(gguf)
    on_gpu = table_choices(device, gguf, config, options)[0]
    tensors = find_tensors(config, gguf.tensors).items()
    return sum(tensor.nbytes for name, tensor in tensors if on_gpu or name != TABLE)


class _Loading:
    """Tells how far the weights have come, and ends it all when nobody wants them any more."""

    def __init__(self, total: int, tell: Tell, stop: asyncio.Event) -> None:
        self.total = total
        self.loaded = 0
        self.moved = 0  # bytes in all: more than there are where a second try was needed
        self._tell = tell
        self._stop = stop

    def add(self, nbytes: int) -> None:
        if self._stop.is_set():
            raise SessionError("loading was given up.")
        self.moved += nbytes
        self.loaded = min(self.loaded + nbytes, self.total)
        self._tell("progress", {"stage": "load", "loaded": self.loaded, "total": self.total})


class _Clock:
    """When a reply began to answer, and how fast it went on."""

    def __init__(self) -> None:
        self._asked = perf_counter()
        self._first = 0.0

    def heard(self, part: Part) -> dict[str, Any]:
        """What the last part says of it: milliseconds to the first one, tokens per second after it."""
        now = perf_counter()
        self._first = self._first or now
        if part.usage is None:
            return {}
        rest, seconds = part.usage.generated - 1, now - self._first
        rate = rest / seconds if rest > 0 and seconds > 0 else 0.0
        return {"timing": {"firstToken": 1e3 * (self._first - self._asked), "tokensPerSecond": rate}}


async def until(stop: asyncio.Event, parts: Any) -> AsyncIterator[Part]:
    """The parts of a reply. Once one has come the reply ends itself at `stop`; before, it is ended from outside, so
    that nobody waits for a long prompt to be read."""
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


# -- what crosses the border


def shown(part: Part) -> dict[str, Any]:
    """A part as the page gets it."""
    told: dict[str, Any] = {"kind": part.kind, "text": part.text}
    if part.tool_call is not None:
        call = part.tool_call
        told["toolCall"] = {"name": call.name, "arguments": call.arguments, "error": call.error, "raw": call.raw}
    if part.finish_reason is not None:
        told["finishReason"] = part.finish_reason
    if part.usage is not None:
        told["usage"] = asdict(part.usage)
    return told


def _with_media(message: Any) -> Any:
    """A message whose pictures and sounds are what the engine takes."""
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
    """JSON as JavaScript reads it: a number that is not finite, which a model may well write, is null."""
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
    """What to show. An error that nobody meant goes to the console whole, and to the page in short."""
    if isinstance(error, Error):
        return str(error)
    traceback.print_exception(error)
    return f"The engine stumbled: {type(error).__name__}: {error}. Load the model again; the console says more."
