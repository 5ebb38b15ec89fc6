"""A model that is loaded: chat with it, generate, look at its logits, adapt it, train it. `loading.py` loads one."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wgemma.engine.adapting import ALL, Choice
from wgemma.engine.backend import Backend, GpuBackend
from wgemma.engine.prefix import Replies
from wgemma.engine.replying import Cancel, Part, Reply, Usage
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import fingerprint
from wgemma.engine.senses import BUDGET
from wgemma.engine.stops import StopStrings
from wgemma.engine.turns import Turns
from wgemma.errors import DeviceError, SessionError, SettingsError
from wgemma.files.adapters import AdapterFile, aread_adapter, check_fits
from wgemma.files.gguf import Gguf
from wgemma.files.locate import ModelFiles
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

    from wgemma.train.finetune import Result
    from wgemma.train.trainer import Progress

__all__ = ["Model", "Part", "Piece", "Usage", "prompt_style"]

_SAMPLING = frozenset(Sampling.__dataclass_fields__)

# The tokens around an image's or a sound's rows.
ENCLOSING = {"image": ("<|image>", "<image|>"), "audio": ("<|audio>", "<audio|>")}


@dataclass(frozen=True, slots=True)
class Piece:
    """A generated token and the text that became certain with it."""

    id: int
    text: str
    logprobs: list[tuple[int, float]] = field(default_factory=list)


class Model:
    """A loaded model and the chat it is in the middle of. Close it, or use it in a `with` block."""

    def __init__(self, files: ModelFiles, opened: Sequence[Gguf], backend: Backend, tokenizer: Tokenizer) -> None:
        self.name = files.name
        self.tokenizer = tokenizer
        self.prompt_style: Literal["small", "large"] = prompt_style(files, opened[0])
        self.backend = backend
        self._files = files
        self._opened = opened
        self._closed = False
        self._turns = Turns()
        self._replies = Replies()

    # -- chat

    def chat(self, messages: Sequence[Any], **options: Any) -> Iterator[Part]:
        """The reply to `messages`, part by part; leaving the loop early cancels it.

        Content may be a list of parts: {"type": "text", "text": …}, {"type": "image", "image": …, "budget": 280} and
        {"type": "audio", "audio": …}, an image being a path, the bytes of a file, a Pillow image or a NumPy array.

        Options: tools, think, max_tokens, thinking_budget, stop, cancel (an Event: once it is set the reply ends and
        its last part says so), adapter (one of those loaded, a dict of scales by name, or None for the bare model;
        without it all are at work), and the fields of `Sampling`.
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
        adapter: Choice = ALL,
        **settings: Any,
    ) -> AsyncGenerator[Part, None]:
        """`chat`, for code that runs in an event loop."""
        pieces = segments(self._with_system(messages), tools=tools, think=think, size=self.prompt_style)
        shown = [content_of(piece.media) for piece in pieces if piece.media is not None]
        self._check_open()
        parser = ReplyParser(think=think, in_thought=opens_in_thought(pieces), tools=tools)
        reply = Reply(self.backend, self.tokenizer, self._replies, parser)
        reply.in_thought, reply.budget = opens_in_thought(pieces), thinking_budget
        reply.stops, reply.cancel = StopStrings(self._stops(stop)), cancel
        sampling = self._sampling(settings)
        limit = self._limit(max_tokens)
        async with self._turns.take():
            reply.adapter = self.backend.adapters.choose(adapter)
            ids = self._replies.encode(self.tokenizer, pieces, await self._place(shown))
            async with aclosing(reply.parts(ids, sampling, limit)) as parts:
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

        Options: max_tokens, stop, adapter (as in `chat`), and the fields of `Sampling`.
        """
        return iterate(self.agenerate(prompt, **options))

    async def agenerate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        adapter: Choice = ALL,
        **settings: Any,
    ) -> AsyncGenerator[Piece, None]:
        """`generate`, for code that runs in an event loop."""
        tokenizer = self.tokenizer
        ids = [tokenizer.id("<bos>"), *tokenizer.encode(prompt)] if isinstance(prompt, str) else list(prompt)
        sampling, stops, decoder = self._sampling(settings), StopStrings(self._stops(stop)), tokenizer.stream(keep=())
        self._check_open()
        limit = self._limit(max_tokens)
        held: Piece | None = None  # a token whose text is not certain yet waits for the next
        async with self._turns.take():
            setting = self.backend.adapters.choose(adapter)  # of those there are when its turn has come
            async with aclosing(self.backend.generate(ids, sampling, limit, adapter=setting)) as tokens:
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

    # -- pictures and sounds

    @property
    def sees(self) -> bool:
        """Whether images can be in a prompt."""
        return self.backend.towers.sees

    @property
    def hears(self) -> bool:
        """Whether sounds can be in a prompt."""
        return self.backend.towers.hears

    def encode_image(self, source: Any, budget: int = BUDGET) -> "NDArray[np.float32]":
        """An image as the decoder sees it: [tokens, width], at most `budget` (70, 140, 280, 560 or 1120) tokens."""
        return run(self.aencode_image(source, budget))

    async def aencode_image(self, source: Any, budget: int = BUDGET) -> "NDArray[np.float32]":
        """`encode_image`, for code that runs in an event loop."""
        return await self._encoded(Content("image", source, budget))

    def encode_audio(self, source: Any) -> "NDArray[np.float32]":
        """A sound as the decoder hears it: [tokens, width], the pieces of a long one behind each other."""
        return run(self.aencode_audio(source))

    async def aencode_audio(self, source: Any) -> "NDArray[np.float32]":
        """`encode_audio`, for code that runs in an event loop."""
        return await self._encoded(Content("audio", source))

    def cut_audio(self, source: Any) -> list[Sound]:
        """A sound in pieces as long as the model hears at once, at most 30 seconds, cut where it is quiet."""
        return run(self.acut_audio(source))

    async def acut_audio(self, source: Any) -> list[Sound]:
        """`cut_audio`, for code that runs in an event loop."""
        self._check_open()
        async with self._turns.take():
            samples = await self.backend.samples(source)
        return [Sound(RATE, 1, samples[start:end]) for start, end in cuts(samples)]

    async def _encoded(self, content: Content) -> "NDArray[np.float32]":
        import numpy as np

        self._check_open()
        async with self._turns.take():
            rows = await self.backend.encode(content)
        return np.frombuffer(rows, np.float32).reshape(-1, self.backend.towers.width)

    def media_ids(self, part: Mapping[str, Any]) -> list[int]:
        """What an image or a sound becomes in a prompt of ids: its rows' numbers, between the tokens that enclose them.

        `part` is a message part. The numbers mean something to this model only, and only while it is loaded.
        """
        return run(self.amedia_ids(part))

    async def amedia_ids(self, part: Mapping[str, Any]) -> list[int]:
        """`media_ids`, for code that runs in an event loop."""
        content = content_of(part)
        self._check_open()
        async with self._turns.take():
            return (await self._place([content]))[0]

    async def _place(self, contents: Sequence[Content]) -> list[list[int]]:
        """For each picture and sound, the ids that stand for it."""
        placed = []
        for content, media in zip(contents, await self.backend.place(contents), strict=True):
            begin, end = (self.tokenizer.id(text) for text in ENCLOSING[content.kind])
            placed.append([i for medium in media for i in (begin, *medium.numbers, end)])
        return placed

    def release_towers(self) -> None:
        """Gives back the memory of the vision and audio towers; the next image or sound loads them again."""
        run(self._in_turn(self.backend.release_towers))

    # -- numbers

    def logits(self, ids: Sequence[int], *, chunks: Sequence[int] = (), adapter: Choice = ALL) -> "NDArray[np.float32]":
        """The logits after every one of `ids`, soft-capped: [len(ids), vocab]. `chunks` sets the passes' sizes."""
        import numpy as np

        return np.frombuffer(run(self.logit_bytes(ids, chunks, adapter)), np.float32).reshape(len(ids), -1)

    async def logit_bytes(self, ids: Sequence[int], chunks: Sequence[int] = (), adapter: Choice = ALL) -> bytes:
        """The same as plain bytes, for code that runs in an event loop or without NumPy."""
        self._check_open()
        async with self._turns.take():
            setting = self.backend.adapters.choose(adapter)
            return b"".join([part async for part in self.backend.logits(list(ids), chunks, setting)])

    # -- adapters

    @property
    def adapters(self) -> dict[str, float]:
        """The scale of each adapter that is loaded, by name."""
        return self.backend.adapters.scales

    def load_adapter(self, path: str | Path | AdapterFile, name: str | None = None, scale: float = 1.0) -> str:
        """Loads a LoRA adapter, a PEFT folder or a .gguf file, which is at work from the next call on; its name, by
        which calls choose it with `adapter=`. One of the same name is replaced; one that does not fit is refused and
        changes nothing."""
        return run(self.aload_adapter(path, name, scale))

    async def aload_adapter(self, target: Any, name: str | None = None, scale: float = 1.0) -> str:
        """`load_adapter`, for code that runs in an event loop; in the page `target` may be a file's source."""
        self._check_open()
        file = await fitting_adapter(self._opened[0], target, name)
        called = name or file.name
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.having(file, called, scale))
        return called

    def unload_adapter(self, name: str) -> None:
        """Gives the adapter's memory back."""
        run(self.aunload_adapter(name))

    async def aunload_adapter(self, name: str) -> None:
        """`unload_adapter`, for code that runs in an event loop."""
        self._check_open()
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.without(name))

    # -- training

    def finetune(self, data: Any, **options: Any) -> "Result":
        """Trains a LoRA adapter on `data` (a .jsonl file, or a list of records) and writes it to the folder `out`; the
        result has its losses, and `adapter` for `load_adapter`. It is one for the bare model: those that are loaded
        have no part in it.

        Options: out, resume (go on from the last checkpoint there), skip_bad (leave bad lines out), progress (called
        after each step), cancel (an Event: once it is set a checkpoint is written and the training ends), and the
        fields of `train.settings.Settings`: rank, alpha, targets, rate, epochs, steps, batch, seq, …
        """
        return run(self.afinetune(data, **options))

    async def afinetune(
        self,
        data: Any,
        *,
        out: str | Path,
        resume: bool = False,
        skip_bad: bool = False,
        progress: "Callable[[Progress], None]" = lambda progress: None,
        cancel: "Cancel | None" = None,
        **settings: Any,
    ) -> "Result":
        """`finetune`, for code that runs in an event loop; `data` may be a `Task` that is prepared already, which knows
        its folder and settings itself."""
        from wgemma.train.finetune import Task, finetune, prepare_task, refuse_adapted
        from wgemma.train.fitting import open_learner

        self._check_open()
        backend = self.backend
        if not isinstance(backend, GpuBackend):
            raise DeviceError("training needs a GPU; the NumPy reference cannot.")
        refuse_adapted(self._files)
        task = data
        if not isinstance(task, Task):
            task = await prepare_task(
                data,
                out,
                settings,
                self.tokenizer,
                self.prompt_style,
                context=backend.context,
                system=self._files.system,
                resume=resume,
                skip_bad=skip_bad,
            )
        async with self._turns.take():
            learner = await open_learner(backend.engine, task.settings)
            try:
                return await finetune(
                    task,
                    learner,
                    base=self.name,
                    model=fingerprint(backend.engine),
                    progress=progress,
                    cancel=cancel,
                    memory=lambda: int(getattr(backend.device, "allocated", 0)),
                )
            finally:
                learner.free()

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
            for gguf in self._opened:
                gguf.close()

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


async def fitting_adapter(gguf: Gguf, target: Any, name: str | None) -> AdapterFile:
    """An adapter, read if it is not yet, that fits this model."""
    file = target if isinstance(target, AdapterFile) else await aread_adapter(target, name)
    check_fits(file, find_tensors(Config.from_gguf(gguf), gguf.tensors))
    return file
