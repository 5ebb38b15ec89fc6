"""A loaded model: chat, generate text, get logits, apply adapters, fine-tune. `loading.py` loads one."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wgemma.checks import all_checked, called, refuse_unknown, shown, texts, whole, whole_numbers, yes_or_no
from wgemma.engine.adapting import ALL, Choice, checked_scale
from wgemma.engine.backend import Backend
from wgemma.engine.prefix import Replies
from wgemma.engine.replying import Part, Reply, Usage
from wgemma.engine.request import Cancel, Hear, PromptProgress, Request, unheard
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import fingerprint
from wgemma.engine.senses import BUDGET
from wgemma.engine.stops import StopStrings
from wgemma.engine.turns import Turns
from wgemma.errors import SessionError, SettingsError
from wgemma.files.adapters import AdapterFile, fitting_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
from wgemma.files.paths import user_path
from wgemma.files.sounds import ARRAY_RATE as RATE
from wgemma.files.sounds import Sound, cuts
from wgemma.model.config import Config, find_tensors
from wgemma.sync import iterate, run
from wgemma.text.parts import Content, content_of
from wgemma.text.reply import ReplyParser
from wgemma.text.template import opens_in_thought, segments
from wgemma.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wgemma.train.finetune import TrainingResult
    from wgemma.train.trainer import Progress

__all__ = ["Model", "Part", "Piece", "PromptProgress", "Usage", "prompt_style"]

_SAMPLING = frozenset(Sampling.__dataclass_fields__)
_GENERATE = {"max_tokens", "stop", "adapter", "cancel", "progress"}  # what `generate` takes besides
_CHAT = {*_GENERATE, "tools", "think", "thinking_budget"}
_FINETUNE = {"out", "resume", "skip_bad", "progress", "cancel"}

# The tokens around the rows of an image or audio clip.
ENCLOSING = {"image": ("<|image>", "<image|>"), "audio": ("<|audio>", "<audio|>")}


@dataclass(frozen=True, slots=True)
class Piece:
    """A generated token and the text it completes."""

    id: int
    text: str
    logprobs: list[tuple[int, float]] = field(default_factory=list)


@all_checked
class Model:
    """A loaded model and its current chat. Close it, or use it in a `with` block."""

    def __init__(
        self, files: ModelFiles, opened: Sequence[Gguf], config: Config, backend: Backend, tokenizer: Tokenizer
    ) -> None:
        self.name = files.name
        self.tokenizer = tokenizer
        self.prompt_style: Literal["small", "large"] = prompt_style(files, opened[0])
        self.backend = backend
        self._files = files
        self._opened = opened
        self._config = config
        self._turns = Turns(self.name, backend.stop, self._free)
        self._replies = Replies()

    # -- chat

    def chat(self, messages: Sequence[Any], **options: Any) -> Iterator[Part]:
        """Streams the reply to `messages`, part by part; leaving the loop early cancels it.

        Content may be a list of parts: {"type": "text", "text": …}, {"type": "image", "image": …, "budget": 280} and
        {"type": "audio", "audio": …}. An image is a path, the bytes of a file, a Pillow image or a NumPy array.

        Options: tools, think, max_tokens, thinking_budget, stop, cancel (an Event: setting it ends the reply, even
        while the prompt is read, and the last part says so), progress (called with a `PromptProgress` while the prompt
        is read), adapter (the name of a loaded one, a dict of scales by name, or None for the base model; by default
        all are active), and the fields of `Sampling`.
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
        progress: Hear = unheard,
        adapter: Choice = ALL,
        **settings: Any,
    ) -> AsyncGenerator[Part, None]:
        """`chat`, for code that runs in an event loop."""
        self._turns.check()
        request = self._request(max_tokens, settings, stop, _CHAT)
        yes_or_no("think", think)
        request = _followed(request, cancel, progress)
        if thinking_budget is not None:
            thinking_budget = whole("thinking_budget", thinking_budget, 0)
        pieces = segments(self._with_system(messages), tools=tools, think=think, size=self.prompt_style)
        media = [content_of(piece.media) for piece in pieces if piece.media is not None]
        in_thought = opens_in_thought(pieces)
        parser = ReplyParser(think=think, in_thought=in_thought, tools=tools)
        request = replace(request, in_thought=in_thought, thinking_budget=thinking_budget)
        async with self._turns.take():
            chosen = self.backend.adapters.choose(adapter)  # only now: other calls may have loaded or unloaded adapters
            ids = self._replies.encode(self.tokenizer, pieces, await self._place(media))
            request = replace(request, ids=ids, adapter=chosen)
            reply = Reply(self.backend, self.tokenizer, self._replies, parser, request)
            async with aclosing(reply.parts()) as parts:
                async for part in parts:
                    with self._turns.paused():
                        yield part

    def _with_system(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Puts the model's own system prompt first if the messages have none."""
        if not self._files.system or not isinstance(messages, list | tuple):
            return messages
        role = messages[0].get("role") if messages and isinstance(messages[0], dict) else None
        if isinstance(role, str) and role in ("system", "developer"):
            return messages
        return [{"role": "system", "content": self._files.system}, *messages]

    # -- plain text

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Piece]:
        """Continues `prompt` (text, or token ids, which are used unchanged), token by token.

        Options: max_tokens, stop, cancel, progress and adapter (as in `chat`), and the fields of `Sampling`.
        """
        return iterate(self.agenerate(prompt, **options))

    async def agenerate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        cancel: "Cancel | None" = None,
        progress: Hear = unheard,
        adapter: Choice = ALL,
        **settings: Any,
    ) -> AsyncGenerator[Piece, None]:
        """`generate`, for code that runs in an event loop."""
        self._turns.check()
        tokenizer = self.tokenizer
        ids = [tokenizer.id("<bos>"), *tokenizer.encode(prompt)] if isinstance(prompt, str) else _ids(prompt)
        request = _followed(self._request(max_tokens, settings, stop, _GENERATE), cancel, progress)
        stops, decoder = StopStrings(request.stops), tokenizer.stream(keep=())
        held: Piece | None = None  # a token whose text is incomplete waits for the next one
        async with self._turns.take():
            request = replace(request, ids=ids, adapter=self.backend.adapters.choose(adapter))
            async with aclosing(self.backend.generate(request)) as tokens:
                async for token in tokens:
                    if token.id in tokenizer.stop_ids:
                        break
                    if held:
                        with self._turns.paused():
                            yield held
                    piece = Piece(token.id, stops.feed(decoder.push(token.id)), token.logprobs)
                    held = piece if decoder.pending or stops.pending else None
                    if held is None:
                        with self._turns.paused():
                            yield piece
                    if stops.found:
                        return
                    if request.cancelled():
                        break
        if held:
            yield replace(held, text=held.text + stops.feed(decoder.finish()) + stops.finish())

    # -- images and audio

    @property
    def sees(self) -> bool:
        """Whether prompts may contain images."""
        return self.backend.towers.sees

    @property
    def hears(self) -> bool:
        """Whether prompts may contain audio."""
        return self.backend.towers.hears

    def encode_image(self, source: Any, budget: int = BUDGET) -> "NDArray[np.float32]":
        """An image's embeddings as the decoder gets them: [tokens, width], at most `budget` (70, 140, 280, 560 or 1120)
        tokens."""
        return run(self.aencode_image(source, budget))

    async def aencode_image(self, source: Any, budget: int = BUDGET) -> "NDArray[np.float32]":
        """`encode_image`, for code that runs in an event loop."""
        return await self._encoded(Content("image", source, budget))

    def encode_audio(self, source: Any) -> "NDArray[np.float32]":
        """A clip's embeddings as the decoder gets them: [tokens, width], the pieces of a long clip concatenated."""
        return run(self.aencode_audio(source))

    async def aencode_audio(self, source: Any) -> "NDArray[np.float32]":
        """`encode_audio`, for code that runs in an event loop."""
        return await self._encoded(Content("audio", source))

    def cut_audio(self, source: Any) -> list[Sound]:
        """Splits audio into pieces the model can take at once, at most 30 seconds each, cutting where it is quiet."""
        return run(self.acut_audio(source))

    async def acut_audio(self, source: Any) -> list[Sound]:
        """`cut_audio`, for code that runs in an event loop."""
        self._turns.check()
        async with self._turns.take():
            samples = await self.backend.samples(source)
        return [Sound(RATE, 1, samples[start:end]) for start, end in cuts(samples)]

    async def _encoded(self, content: Content) -> "NDArray[np.float32]":
        import numpy as np

        self._turns.check()
        async with self._turns.take():
            rows = await self.backend.encode(content)
        return np.frombuffer(rows, np.float32).reshape(-1, self.backend.towers.width)

    def media_ids(self, part: Mapping[str, Any]) -> list[int]:
        """The ids that stand for an image or audio clip in a prompt of ids: one per row, between the enclosing tokens.

        `part` is a message part. The ids are valid for this model only, and only while it is loaded.
        """
        return run(self.amedia_ids(part))

    async def amedia_ids(self, part: Mapping[str, Any]) -> list[int]:
        """`media_ids`, for code that runs in an event loop."""
        content = content_of(part)
        self._turns.check()
        async with self._turns.take():
            return (await self._place([content]))[0]

    async def _place(self, contents: Sequence[Content]) -> list[list[int]]:
        """The ids that stand for each image and audio clip."""
        placed = []
        for content, media in zip(contents, await self.backend.place(contents), strict=True):
            begin, end = (self.tokenizer.id(text) for text in ENCLOSING[content.kind])
            placed.append([i for medium in media for i in (begin, *medium.numbers, end)])
        return placed

    def release_towers(self) -> None:
        """Frees the vision and audio towers' memory; the next image or audio clip loads them again."""
        run(self._in_turn(self.backend.release_towers))

    # -- numbers

    def logits(self, ids: Sequence[int], *, chunks: Sequence[int] = (), adapter: Choice = ALL) -> "NDArray[np.float32]":
        """Soft-capped logits at every position of `ids`: [len(ids), vocab]. `chunks` sets the sizes of the passes."""
        import numpy as np

        rows = _ids(ids)
        return np.frombuffer(run(self.logit_bytes(rows, chunks, adapter)), np.float32).reshape(len(rows), -1)

    async def logit_bytes(self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Choice = ALL) -> bytes:
        """`logits` as raw bytes, for code that runs in an event loop or without NumPy."""
        self._turns.check()
        ids, sizes = _ids(ids), whole_numbers(chunks)
        if sizes is None:
            raise SettingsError(f"chunks is {shown(chunks)}; it must be a list of pass sizes.")
        sizes = [whole("a size in chunks", size, 1) for size in sizes]
        async with self._turns.take():
            setting = self.backend.adapters.choose(adapter)
            return b"".join([part async for part in self.backend.logits(ids, sizes, setting)])

    # -- adapters

    @property
    def adapters(self) -> dict[str, float]:
        """The scale of each loaded adapter, by name."""
        return self.backend.adapters.scales

    def load_adapter(self, path: str | Path | AdapterFile, name: str | None = None, scale: float = 1.0) -> str:
        """Loads a LoRA adapter from a PEFT folder or a .gguf file; returns its name, which selects it with `adapter=`.
        It is active from the next call on and replaces an adapter of the same name. If it does not fit the model,
        `AdapterError` is raised and nothing changes."""
        return run(self.aload_adapter(path, name, scale))

    async def aload_adapter(self, target: Any, name: str | None = None, scale: float = 1.0) -> str:
        """`load_adapter`, for code that runs in an event loop; in a web page `target` may be a `Source`."""
        self._turns.check()
        scale = checked_scale(scale)
        file = await fitting_adapter(find_tensors(self._config, self._opened[0].tensors), target, name)
        name = name or file.name
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.having(file, name, scale))
        return name

    def unload_adapter(self, name: str) -> None:
        """Unloads an adapter and frees its memory."""
        run(self.aunload_adapter(name))

    async def aunload_adapter(self, name: str) -> None:
        """`unload_adapter`, for code that runs in an event loop."""
        self._turns.check()
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.without(name))

    # -- training

    def finetune(self, data: Any, **options: Any) -> "TrainingResult":
        """Trains a LoRA adapter on `data` (a .jsonl file, or a list of records) and writes it to the folder `out`. The
        result holds the losses, and `adapter` for `load_adapter`. Training always starts from the base model; loaded
        adapters are ignored.

        Options: out, resume (continue from the last checkpoint in `out`), skip_bad (skip bad lines), progress (called
        after each step), cancel (an Event: setting it writes a checkpoint and ends training), and the
        fields of `TrainingSettings`: rank, alpha, targets, rate, epochs, steps, batch, seq, …
        """
        return run(self.afinetune(data, **options))

    async def afinetune(
        self,
        data: Any,
        *,
        out: str | Path | None = None,
        resume: bool = False,
        skip_bad: bool = False,
        progress: "Callable[[Progress], None]" = lambda progress: None,
        cancel: "Cancel | None" = None,
        **settings: Any,
    ) -> "TrainingResult":
        """`finetune`, for code that runs in an event loop; `data` may be a prepared `Task`, which has its own folder
        and settings."""
        from wgemma.train.finetune import Task, finetune, prepare_task, refuse_adapted
        from wgemma.train.fitting import open_learner
        from wgemma.train.settings import TrainingSettings

        self._turns.check()
        refuse_unknown(settings, {*_FINETUNE, *TrainingSettings.__dataclass_fields__})
        yes_or_no("resume", resume)
        yes_or_no("skip_bad", skip_bad)
        called("progress", progress, "a function that takes a Progress")
        _check_cancel(cancel)
        engine = self.backend.runner.engine
        refuse_adapted(self._files)
        task = data
        if not isinstance(task, Task):
            task = await prepare_task(
                data,
                out,
                settings,
                self.tokenizer,
                self.prompt_style,
                context=engine.context,
                system=self._files.system,
                resume=resume,
                skip_bad=skip_bad,
            )

        def report(step: "Progress") -> None:
            progress(step)
            self._turns.check()

        async with self._turns.take():
            engine = self.backend.runner.engine  # may have been rebuilt meanwhile
            learner = await open_learner(engine, task.settings)
            try:
                return await finetune(
                    task,
                    learner,
                    base=self.name,
                    model=fingerprint(engine),
                    progress=report,
                    cancel=cancel,
                    memory=lambda: engine.device.allocated,
                )
            finally:
                learner.free()

    # -- settings

    def _request(
        self, max_tokens: int | None, settings: dict[str, Any], stop: str | Sequence[str], others: set[str]
    ) -> Request:
        """A request that still lacks its prompt; `others` are the options besides sampling."""
        refuse_unknown(settings, _SAMPLING | others)
        stops = texts("stop", stop) + texts("the model's own stop", self._files.params.get("stop"))
        return Request((), self._limit(max_tokens), self._sampling(settings), stops=stops)

    def _sampling(self, settings: dict[str, Any]) -> Sampling:
        """The model's own settings, overridden by the caller's."""
        own = {name: value for name, value in self._files.params.items() if name in _SAMPLING}
        return Sampling(**{**own, **settings})

    def _limit(self, max_tokens: int | None) -> int:
        if max_tokens is None:
            own = self._files.params.get("num_predict", -1)
            max_tokens = own if isinstance(own, int) and own > 0 else self.backend.context
        return whole("max_tokens", max_tokens, 1)

    # -- life

    def reset(self) -> None:
        """Forgets the chat, so the next call recomputes everything. Raises `SessionError` during a reply."""
        run(self._in_turn(self.backend.reset))

    def save(self, path: str | Path) -> None:
        """Saves this chat to a file: its tokens and their KV cache."""
        file = user_path(path, SessionError)
        run(self._in_turn(lambda: run(self.backend.save(file))))

    def restore(self, path: str | Path) -> None:
        """Restores a chat saved from the same model; any other file raises an error and changes nothing."""
        file = user_path(path, SessionError)
        run(self._in_turn(lambda: run(self.backend.restore(file))))

    async def _in_turn(self, work: Callable[[], None]) -> None:
        self._turns.check()
        async with self._turns.take():
            work()

    def close(self) -> None:
        """Frees all memory. Other threads' calls end with `SessionError`; this waits for what the GPU is computing. In
        a forked child it does nothing."""
        self._turns.close()

    def _free(self) -> None:
        self.backend.close()
        for gguf in self._opened:
            gguf.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wgemma.Model {self.name} on {self.backend.name}>"


def prompt_style(files: ModelFiles, gguf: Gguf) -> Literal["small", "large"]:
    """The prompt format: as the store says, otherwise "small" for models with per-layer embeddings."""
    if files.prompt_style is not None:
        return "large" if files.prompt_style == "large" else "small"
    return "small" if gguf.metadata.get("gemma4.embedding_length_per_layer_input") else "large"


def _ids(given: Any) -> list[int]:
    """Token ids from any series of whole numbers; what they may be depends on the model."""
    ids = whole_numbers(given)
    if ids is None:
        raise SettingsError(f"the prompt is {shown(given)}; it must be text or a list of token ids.")
    return ids


def _followed(request: Request, cancel: Any, progress: Any) -> Request:
    """The request of a caller who may cancel it and hears how far its prompt is."""
    _check_cancel(cancel)
    called("progress", progress, "a function that takes a PromptProgress")
    return replace(request, cancel=cancel, progress=progress)


def _check_cancel(cancel: Any) -> None:
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise SettingsError(f"cancel is {shown(cancel)}; it must be an Event, of threading or asyncio.")
