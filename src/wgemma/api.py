"""The public face: `load` a model, then chat, generate, or look at its logits."""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from wgemma.engine.backend import Backend, GpuBackend
from wgemma.engine.engine import Engine, Options
from wgemma.engine.prefix import Replies, marks
from wgemma.engine.sampling import Sampling
from wgemma.engine.selftest import prepare
from wgemma.engine.session import Token
from wgemma.engine.stops import StopStrings
from wgemma.engine.turns import Turns
from wgemma.errors import DeviceError, ModelError, OutOfMemory, SessionError, SettingsError
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles, locate
from wgemma.gpu.device import Device
from wgemma.model.config import Config
from wgemma.sync import iterate, run
from wgemma.text.reply import ReplyParser, ToolCall
from wgemma.text.template import opens_in_thought, segments
from wgemma.text.tokenizer import MARKUP, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SAMPLING = frozenset(Sampling.__dataclass_fields__)


class Cancel(Protocol):
    """Something that can ask a reply to end: a threading.Event or an asyncio.Event."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt, how many of them were computed before, and tokens generated."""

    prompt: int
    reused: int
    generated: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a reply. The last one has no text, but `finish_reason` (stop, length, tool, cancelled) and `usage`."""

    kind: Literal["thinking", "content", "tool_call"]
    text: str = ""
    tool_call: ToolCall | None = None
    finish_reason: Literal["stop", "length", "tool", "cancelled"] | None = None
    usage: Usage | None = None
    logprobs: list[list[tuple[int, float]]] = field(default_factory=list)  # one list per token


@dataclass(frozen=True, slots=True)
class Piece:
    """A generated token and the text that became certain with it."""

    id: int
    text: str
    logprobs: list[tuple[int, float]] = field(default_factory=list)


def load(target: str | Path | None = None, **options: Any) -> "Model":
    """Loads a model: an Ollama name, a .gguf path or an http(s) URL.

    Options: device (None: the best adapter; "reference": NumPy, for machines without one), context, kv ("f16" or
    "f32"), precision ("exact"), ple ("auto", "gpu", "host"), memory (bytes of the GPU to stay within), projector,
    adapter, progress (called with the bytes of every piece loaded).
    """
    return run(aload(target, **options))


async def aload(
    target: str | Path | None = None,
    *,
    projector: str | Path | None = None,
    adapter: str | Path | None = None,
    device: Device | str | None = None,
    context: int | None = None,
    kv: str = "f16",
    precision: str = "exact",
    ple: str = "auto",
    memory: int | None = None,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> "Model":
    """`load`, for code that runs in an event loop."""
    if target is None:
        raise ModelError("there is no built-in model yet: name one. `wgemma list` shows what is on this machine.")
    if precision != "exact":
        raise SettingsError(f"precision is {precision!r}; this version has 'exact' only.")
    files = locate(target)
    refuse_unsupported(files, projector, adapter)
    options = Options(context=context, kv=kv, ple=ple, memory=memory)
    gguf = await Gguf.aopen(_on_disk(files, progress))
    try:
        backend = await _backend(device, gguf, options, progress)
    except ModelError as error:
        gguf.close()
        raise ModelError(str(error).replace(gguf.source.name, files.name)) from None  # the name the user knows it by
    except BaseException:
        gguf.close()
        raise
    try:
        return Model(files, gguf, backend)
    except BaseException:
        backend.close()
        gguf.close()
        raise


def refuse_unsupported(files: ModelFiles, projector: object = None, adapter: object = None) -> None:
    """Says early what this version cannot do, before anything is loaded."""
    if not (projector or adapter or files.adapters):
        return
    what = "an adapter" if adapter or files.adapters else "a projector"
    base = f" Its base {files.stored.parent} runs." if files.stored and files.stored.parent else ""
    raise ModelError(f"{files.name} comes with {what}, which this version cannot apply yet.{base}")


def _on_disk(files: ModelFiles, progress: Callable[[int], None]) -> str | Path:
    """The model's file; one on the web is downloaded first, and kept."""
    if isinstance(files.model, Path):
        return files.model
    from wgemma.files.download import download

    return download(files.model, progress=progress)


async def _backend(
    device: Device | str | None, gguf: Gguf, options: Options, progress: Callable[[int], None]
) -> Backend:
    if device == "reference":
        from wgemma.engine.fallback import ReferenceBackend

        return ReferenceBackend(gguf, options)
    opened = open_device(device) if device is None or isinstance(device, str) else device
    try:
        await prepare(opened, Config.from_gguf(gguf), gguf.tensors, options)
        engine = await Engine.load(opened, gguf, options, progress)
        try:
            return GpuBackend(opened, engine, owned=opened is not device)
        except OutOfMemory:
            engine.free()
            raise
    except BaseException:
        if opened is not device:
            opened.close()
        raise


def open_device(name: str | None = None) -> Device:
    """The best adapter, or the first whose name holds `name`."""
    from wgemma.gpu.native import NativeDevice, adapters

    found = [a for a in adapters() if name is None or name.lower() in str(a.info["device"]).lower()]
    if not found:
        hint = f"no adapter is called {name!r}" if name else "no WebGPU adapter was found"
        raise DeviceError(f"{hint}. `wgemma doctor` shows what there is; the device 'reference' computes without one.")
    return NativeDevice(found[0])


class Model:
    """A loaded model and the chat it is in the middle of. Close it, or use it in a `with` block."""

    def __init__(self, files: ModelFiles, gguf: Gguf, backend: Backend) -> None:
        self.name = files.name
        self.tokenizer = Tokenizer.from_gguf(gguf)
        self.prompt_style: Literal["small", "large"] = prompt_style(files, gguf)
        self.backend = backend
        self._files = files
        self._gguf = gguf
        self._closed = False
        self._turns = Turns()
        self._replies = Replies()

    # -- chat

    def chat(self, messages: Sequence[Any], **options: Any) -> Iterator[Part]:
        """The reply to `messages`, part by part; leaving the loop early cancels it.

        Options: tools, think, max_tokens, thinking_budget, stop, cancel (an Event: once it is set the reply ends and
        its last part says so), and the fields of `Sampling`.
        """
        return iterate(self.achat(messages, **options))

    async def achat(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[Any] | None = None,
        think: bool = False,
        max_tokens: int | None = None,
        thinking_budget: int | None = None,
        stop: str | Sequence[str] = (),
        cancel: "Cancel | None" = None,
        **settings: Any,
    ) -> AsyncGenerator[Part, None]:
        """`chat`, for code that runs in an event loop."""
        pieces = segments(self._with_system(messages), tools=tools, think=think, size=self.prompt_style)
        if any(piece.media is not None for piece in pieces):
            raise ModelError("this version reads text only; leave images and sounds out.")
        self._check_open()
        ids = self._replies.encode(self.tokenizer, pieces)
        reply = _Reply(self, ReplyParser(think=think, in_thought=opens_in_thought(pieces), tools=tools))
        reply.in_thought, reply.budget = opens_in_thought(pieces), thinking_budget
        reply.stops, reply.cancel = StopStrings(self._stops(stop)), cancel
        sampling = self._sampling(settings)
        limit = self._limit(max_tokens)
        async with self._turns.take(), aclosing(reply.parts(ids, sampling, limit)) as parts:
            async for part in parts:
                yield part

    def _with_system(self, messages: Sequence[Any]) -> Sequence[Any]:
        """The model's own system text goes first when the messages bring none."""
        first = messages[0] if messages else None
        has_one = isinstance(first, dict) and first.get("role") in ("system", "developer")
        if not self._files.system or has_one or not isinstance(messages, list | tuple):
            return messages
        return [{"role": "system", "content": self._files.system}, *messages]

    # -- plain text

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Piece]:
        """What follows `prompt` (text, or ids that are taken as they are), token by token.

        Options: max_tokens, stop, and the fields of `Sampling`.
        """
        return iterate(self.agenerate(prompt, **options))

    async def agenerate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        **settings: Any,
    ) -> AsyncGenerator[Piece, None]:
        """`generate`, for code that runs in an event loop."""
        tokenizer = self.tokenizer
        ids = [tokenizer.id("<bos>"), *tokenizer.encode(prompt)] if isinstance(prompt, str) else list(prompt)
        sampling, stops, decoder = self._sampling(settings), StopStrings(self._stops(stop)), tokenizer.stream(keep=())
        self._check_open()
        tokens = self.backend.generate(ids, sampling, self._limit(max_tokens))
        held: Piece | None = None  # a token whose text is not certain yet waits for the next
        async with self._turns.take(), aclosing(tokens):
            async for token in tokens:
                if token.id in tokenizer.stop_ids:
                    break
                if held:
                    yield held
                piece = Piece(token.id, stops.feed(decoder.push(token.id)), token.logprobs)
                held = piece if decoder.pending or stops.pending else None
                if held is None:
                    yield piece
                if stops.found:
                    return
        if held:
            yield replace(held, text=held.text + stops.feed(decoder.finish()) + stops.finish())

    # -- numbers

    def logits(self, ids: Sequence[int], *, chunks: Sequence[int] = ()) -> "NDArray[np.float32]":
        """The logits after every one of `ids`, soft-capped: [len(ids), vocab]. `chunks` sets the passes' sizes."""
        import numpy as np

        self._check_open()

        async def collect() -> bytes:
            async with self._turns.take():
                return b"".join([part async for part in self.backend.logits(list(ids), chunks)])

        return np.frombuffer(run(collect()), np.float32).reshape(len(ids), -1)

    # -- settings

    def _sampling(self, settings: dict[str, Any]) -> Sampling:
        """The caller's settings over the model's own."""
        unknown = sorted(settings.keys() - _SAMPLING)
        if unknown:
            raise SettingsError(f"there is no setting {unknown[0]!r}. Known: {', '.join(sorted(_SAMPLING))}.")
        own = {name: value for name, value in self._files.params.items() if name in _SAMPLING}
        return Sampling(**{**own, **settings})

    def _stops(self, stop: str | Sequence[str] | None) -> list[str]:
        own = self._files.params.get("stop")
        both = [text for each in (stop, own) for text in ([each] if isinstance(each, str) else each or ())]
        if not all(isinstance(text, str) for text in both):
            raise SettingsError(f"stop is {stop!r}; it must be a string or a list of strings.")
        return both

    def _limit(self, max_tokens: int | None) -> int:
        if max_tokens is None:
            own = self._files.params.get("num_predict", -1)
            max_tokens = own if isinstance(own, int) and own > 0 else self.backend.context
        if not isinstance(max_tokens, int) or max_tokens < 1:
            raise SettingsError(f"max_tokens is {max_tokens!r}; it must be a whole number from 1.")
        return max_tokens

    # -- life

    def reset(self) -> None:
        """Forgets the chat: the next call computes everything anew. In the middle of a reply it is refused."""
        run(self._in_turn(self.backend.reset))

    def save(self, path: str | Path) -> None:
        """Writes the tokens of this chat, and what was computed of them, to a file."""
        run(self._in_turn(lambda: run(self.backend.save(path))))

    def restore(self, path: str | Path) -> None:
        """Goes on with a chat that was saved from the same model; another file is refused and changes nothing."""
        run(self._in_turn(lambda: run(self.backend.restore(path))))

    async def _in_turn(self, work: Callable[[], None]) -> None:
        self._check_open()
        async with self._turns.take():
            work()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError(f"{self.name} is closed; load it again.")

    def close(self) -> None:
        """Gives all memory back."""
        if not self._closed:
            self._closed = True
            self.backend.close()
            self._gguf.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wgemma.Model {self.name} on {self.backend.name}>"


def prompt_style(files: ModelFiles, gguf: Gguf) -> Literal["small", "large"]:
    """Which of the two prompt forms: what the store says, else small for models with per-layer embeddings."""
    if files.prompt_style is not None:
        return "large" if files.prompt_style == "large" else "small"
    return "small" if gguf.metadata.get("gemma4.embedding_length_per_layer_input") else "large"


class _Reply:
    """One reply on its way from token ids to parts."""

    def __init__(self, model: Model, parser: ReplyParser) -> None:
        self.model = model
        self.parser = parser
        self.in_thought = False
        self.budget: int | None = None  # tokens to think with
        self.stops = StopStrings(())
        self.cancel: Cancel | None = None
        self.decoder = model.tokenizer.stream(keep=MARKUP)
        self.generated: list[int] = []
        self.called = False
        self.content: list[str] = []

    async def parts(self, ids: list[int], sampling: Sampling, limit: int) -> AsyncGenerator[Part, None]:
        reason, reused = "", 0
        try:
            while not reason:
                room = limit - len(self.generated)
                places = marks(self.model.tokenizer, ids)
                tokens = self.model.backend.generate(ids + self.generated, sampling, room, places)
                async with aclosing(tokens):
                    reason = "length"
                    async for token in tokens:
                        reused = reused or self.model.backend.reused
                        reason, parts = self._next(token)
                        for part in parts:
                            yield part
                        if reason:
                            break
                        reason = "length"
                if reason == "budget":
                    forced = self.model.tokenizer.encode("\n<channel|>", special=True)
                    room = min(limit, self.model.backend.context - len(ids)) - len(self.generated)
                    reason = "" if room > len(forced) else "length"
                    for part in self._force(forced) if not reason else ():
                        yield part
            for part in self._end():
                yield part
        finally:
            self._remember()
        ended: Any = "tool" if self.called else reason
        yield Part("content", finish_reason=ended, usage=Usage(len(ids), reused, len(self.generated)))

    def _next(self, token: Token) -> tuple[str, list[Part]]:
        """What a token brings, and why the reply ends with it, if it does; "budget" ends only the thought."""
        if token.id in self.model.tokenizer.stop_ids:
            return "stop", []
        self.generated.append(token.id)
        parts = self._take(token)
        if self.stops.found:
            return "stop", parts
        if self.cancel is not None and self.cancel.is_set():
            return "cancelled", parts
        over = self.budget is not None and self.in_thought and len(self.generated) >= self.budget
        return "budget" if over else "", parts

    def _take(self, token: Token) -> list[Part]:
        self._follow_thought(token.id)
        found = self._parts(self.stops.feed(self.decoder.push(token.id)))
        if token.logprobs:
            last = found.pop() if found else Part("thinking" if self.in_thought else "content")
            found.append(replace(last, logprobs=[token.logprobs]))
        return found

    def _parts(self, text: str) -> list[Part]:
        return [self._public(part) for part in self.parser.feed(text)]

    def _public(self, part: Any) -> Part:
        self.called = self.called or part.kind == "tool_call"
        if part.kind == "content":
            self.content.append(part.text)
        return Part(part.kind, part.text, part.tool_call)

    def _end(self) -> list[Part]:
        rest = self.stops.feed(self.decoder.finish()) + self.stops.finish()
        return self._parts(rest) + [self._public(part) for part in self.parser.finish()]

    # -- the thinking budget

    def _follow_thought(self, token_id: int) -> None:
        special = self.model.tokenizer.special
        if token_id == special.get("<|channel>"):
            self.in_thought = True
        elif token_id == special.get("<channel|>"):
            self.in_thought = False

    def _force(self, forced: Sequence[int]) -> list[Part]:
        """Says something in the model's place, such as the end of its thought; it goes on from there."""
        parts = []
        for token_id in forced:
            self.generated.append(token_id)
            self._follow_thought(token_id)
            parts += self._parts(self.stops.feed(self.decoder.push(token_id)))
        return parts

    def _remember(self) -> None:
        """Keeps the ids of the answer, so that it is not tokenised again in the next prompt."""
        tokenizer = self.model.tokenizer
        end = tokenizer.special.get("<channel|>")
        ids = self.generated
        if end in ids:
            ids = ids[len(ids) - ids[::-1].index(end) :]
        text = "".join(self.content)
        if tokenizer.decode(ids) == text:
            self.model._replies.remember(text, ids)
