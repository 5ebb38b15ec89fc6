"""A loaded model: chat, generate text, get logits, apply adapters, fine-tune. `loading.py` loads one."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from wgemma.answers import Answer, AsyncAnswer
from wgemma.checks import all_checked, called, shown, texts, whole, yes_or_no
from wgemma.engine.adapting import ALL, Choice, checked_scale
from wgemma.engine.continuing import Piece, pieces
from wgemma.engine.endings import Ending, TokenLogprob, Usage
from wgemma.engine.replying import Part, Reply
from wgemma.engine.request import Cancel, Hear, PromptProgress, Request, unheard
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import fingerprint
from wgemma.engine.shift import fit, messages_in
from wgemma.engine.thinking import Level, thinking
from wgemma.errors import SettingsError, TemplateError
from wgemma.files.adapters import AdapterFile, fitting_adapter
from wgemma.habits import refuse_unknown_options
from wgemma.loaded import prompt_style
from wgemma.media import Perceiving
from wgemma.model.config import find_tensors
from wgemma.numbers import Computing, ids_of
from wgemma.options import ChatOptions, FinetuneOptions, GenerateOptions, SamplingOptions, TrainingOptions
from wgemma.sync import run
from wgemma.text.parts import Content, content_of
from wgemma.text.reply import ReplyParser
from wgemma.text.template import Segment, awaits_tools, opens_in_thought, segments

if TYPE_CHECKING:
    from wgemma.train.finetune import TrainingResult
    from wgemma.train.trainer import Progress

__all__ = ["Answer", "AsyncAnswer", "Model", "Part", "Piece", "PromptProgress", "TokenLogprob", "Usage", "prompt_style"]

_SAMPLING = SamplingOptions.__optional_keys__

T = TypeVar("T")


@all_checked
class Model(Perceiving, Computing):
    """A loaded model and its current chat. Close it, or use it in a `with` block.

    `name` is what it was loaded as; `tokenizer` turns text into token ids and back.
    """

    # -- chat

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> Answer[Part]:
        """Streams the reply to `messages`, part by part; leaving the loop early cancels it. `.text` is all of it.

        A message is a dict such as `{"role": "user", "content": "Hello"}`; the roles are system, user, assistant and
        tool. Content may be a list of parts: `{"type": "text", "text": …}`, `{"type": "audio", "audio": …}` and
        `{"type": "image", "image": …, "budget": 280}`. An image is a path, the bytes of a file, a Pillow image or a
        NumPy array. If the last message is the assistant's, the reply continues it; its trailing white space is
        dropped, and there is no new thinking.

        Options:
            tools: the functions the model may call, described as in OpenAI's API.
            think: whether the model thinks before it answers: True, or "low", "medium" or "high", which limit a thought
                to 512, 2048 or 8192 tokens.
            thinking_budget: the most tokens of a thought.
            max_tokens: the most tokens of the reply; by default the `num_predict` of a stored model, or as many as
                the context holds. 0 computes the prompt and generates nothing; with `logprobs`, the answer then has
                `prompt_logprobs`.
            stop: a string, or several, that end the reply. It does not contain them.
            cancel: an Event; setting it ends the reply, even while the prompt is read, and the last part says so.
            progress: called with a `PromptProgress` while the prompt is read.
            shift: whether a chat that does not fit into the context loses its oldest turns (the default), which
                `usage.dropped` tells, or is refused with `ContextOverflow`.
            adapter: the name of a loaded adapter, a dict of scales by name, or None for the base model; by default
                all adapters are active.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return Answer(self._chat(messages, **options))

    def achat(self, messages: Sequence[Mapping[str, Any]], **options: Unpack[ChatOptions]) -> AsyncAnswer[Part]:
        """`chat`, for code that runs in an event loop: iterate with `async for`, or await the whole answer."""
        return AsyncAnswer(self._chat(messages, **options))

    def _chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        think: bool | Level = False,
        max_tokens: int | None = None,
        thinking_budget: int | None = None,
        stop: str | Sequence[str] | None = None,
        cancel: "Cancel | None" = None,
        progress: Hear = unheard,
        adapter: Choice = ALL,
        shift: bool = True,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncGenerator[Part | Ending, None]:
        """Checks the call at once; the reply begins with the first step of the result."""
        self._turns.check()
        request = _followed(self._request("chat", max_tokens, stop, sampling), cancel, progress)
        thinks, thinking_budget = thinking(think, thinking_budget)
        yes_or_no("shift", shift)
        if isinstance(messages, list | tuple) and not messages:
            raise TemplateError('messages is empty; write [{"role": "user", "content": "Hello"}].')
        prompt = segments(self._with_system(messages), tools=tools, think=thinks, size=self.prompt_style)
        if awaits_tools(prompt):
            raise TemplateError('the last message calls tools; add a message with role "tool" for each result.')
        media = {id(piece.media): content_of(piece.media) for piece in prompt if piece.media is not None}
        in_thought = opens_in_thought(prompt)
        parser = ReplyParser(think=thinks, in_thought=in_thought, tools=tools)
        request = replace(request, in_thought=in_thought, thinking_budget=thinking_budget)

        async def parts() -> AsyncGenerator[Part | Ending, None]:
            kept, turns = self._fit(prompt, media, request.max_tokens) if shift else (prompt, 0)
            contents = [media[id(piece.media)] for piece in kept if piece.media is not None]
            ids = self._replies.encode(self.tokenizer, kept, await self._place(contents))
            ready, dropped = self._ready(request, ids, adapter), messages_in(messages, turns)
            reply = Reply(self.backend, self.tokenizer, self._replies, parser, ready, dropped)
            async with aclosing(reply.parts()) as items:
                async for part in items:
                    yield part

        return self._streamed(parts)

    def _fit(self, prompt: Sequence[Segment], media: Mapping[int, Content], room: int) -> tuple[list[Segment], int]:
        """What of a chat fits, and how many turns do not: `room` tokens are for the reply, or a quarter of the
        context if that is less."""
        context = self.backend.context
        count = partial(self._replies.count, self.tokenizer)
        return fit(prompt, context, min(context // 4, room), count, lambda part: self.backend.weigh(media[id(part)]))

    async def _streamed(self, begin: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """A reply in its turn: nothing else is computed until it ends, and between its parts nothing at all."""
        async with self._turns.take(), aclosing(begin()) as items:
            async for item in items:
                with self._turns.paused():
                    yield item

    def _ready(self, request: Request, ids: Sequence[int], adapter: Choice) -> Request:
        """The request with its prompt; called in its turn, because other calls may load or unload adapters."""
        return replace(request, ids=ids, adapter=self.backend.adapters.choose(adapter))

    def _with_system(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Puts the model's own system prompt first if the messages have none."""
        if not self._files.system or not isinstance(messages, list | tuple):
            return messages
        role = messages[0].get("role") if messages and isinstance(messages[0], dict) else None
        if isinstance(role, str) and role in ("system", "developer"):
            return messages
        return [{"role": "system", "content": self._files.system}, *messages]

    # -- plain text

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> Answer[Piece]:
        """Continues `prompt` (text, or token ids, which are used unchanged), token by token; `.text` is all of it.

        Options:
            max_tokens, stop, cancel, progress, adapter: as in `chat`.
            temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, repeat_last_n,
                logit_bias, seed, logprobs: how to choose the next token; see `Sampling`.
        """
        return Answer(self._generate(prompt, **options))

    def agenerate(self, prompt: str | Sequence[int], **options: Unpack[GenerateOptions]) -> AsyncAnswer[Piece]:
        """`generate`, for code that runs in an event loop: iterate with `async for`, or await the whole answer."""
        return AsyncAnswer(self._generate(prompt, **options))

    def _generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        cancel: "Cancel | None" = None,
        progress: Hear = unheard,
        adapter: Choice = ALL,
        **sampling: Unpack[SamplingOptions],
    ) -> AsyncGenerator[Piece | Ending, None]:
        self._turns.check()
        ids = self._with_bos(prompt) if isinstance(prompt, str) else ids_of(prompt)
        request = _followed(self._request("generate", max_tokens, stop, sampling), cancel, progress)
        return self._streamed(lambda: pieces(self.backend, self.tokenizer, self._ready(request, ids, adapter)))

    # -- adapters

    @property
    def adapters(self) -> dict[str, float]:
        """The scale of each loaded adapter, by name."""
        return self.backend.adapters.scales

    def load_adapter(self, path: str | Path | AdapterFile, name: str | None = None, scale: float = 1.0) -> str:
        """Loads a LoRA adapter from a `path` (a PEFT folder or a .gguf file); returns its `name`, which selects it with
        `adapter=` and is the file's own by default. It is active from the next call on, at `scale`, and replaces an
        adapter of the same name. If it does not fit the model, `AdapterError` is raised and nothing changes."""
        return run(self.aload_adapter(path, name, scale))

    async def aload_adapter(self, path: Any, name: str | None = None, scale: float = 1.0) -> str:
        """`load_adapter`, for code that runs in an event loop; in a web page `path` may be a `Source`."""
        self._turns.check()
        scale = checked_scale(scale)
        file = await fitting_adapter(find_tensors(self._config, self._opened[0].tensors), path, name)
        name = name or file.name
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.having(file, name, scale))
        return name

    def unload_adapter(self, name: str) -> None:
        """Unloads the adapter of this `name` and frees its memory."""
        run(self.aunload_adapter(name))

    async def aunload_adapter(self, name: str) -> None:
        """`unload_adapter`, for code that runs in an event loop."""
        self._turns.check()
        async with self._turns.take():
            await self.backend.adapt(self.backend.adapters.without(name))

    # -- training

    def finetune(self, data: Any, **options: Unpack[FinetuneOptions]) -> "TrainingResult":
        """Trains a LoRA adapter on `data` (a .jsonl file, or a list of records) and writes it to the folder `out`. The
        result holds the losses, and `adapter` for `load_adapter`. Training always starts from the base model; loaded
        adapters are ignored.

        Options:
            out: the folder for the adapter, its model card, the losses and the last checkpoints.
            resume: continue from the last checkpoint in `out`.
            skip_bad: skip bad lines instead of raising `DataError`.
            progress: called with a `Progress` after each step.
            cancel: an Event; setting it writes a checkpoint and ends training.
            rank, alpha, targets, rslora, dropout, lr, schedule, warmup, epochs, steps, batch, seq, packing, seed,
                weight_decay, clip, betas, eps, validation, save_every, checkpointing: see `TrainingSettings`.
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
        **settings: Unpack[TrainingOptions],
    ) -> "TrainingResult":
        """`finetune`, for code that runs in an event loop; `data` may be a prepared `Task`, which has its own folder
        and settings."""
        from wgemma.train.finetune import Task, finetune, prepare_task, refuse_adapted
        from wgemma.train.fitting import open_learner

        self._turns.check()
        refuse_unknown_options("finetune", settings)
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
                {**settings},
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
        self, call: str, max_tokens: int | None, stop: str | Sequence[str] | None, sampling: SamplingOptions
    ) -> Request:
        """A request that still lacks its prompt."""
        refuse_unknown_options(call, sampling)
        stops = texts("stop", stop) + texts("the model's own stop", self._files.params.get("stop"))
        return Request((), self._limit(max_tokens), self._sampling(sampling), stops=stops)

    def _sampling(self, settings: SamplingOptions) -> Sampling:
        """The model's own settings, overridden by the caller's."""
        own = {name: value for name, value in self._files.params.items() if name in _SAMPLING}
        return Sampling(**{**own, **settings})

    def _limit(self, max_tokens: int | None) -> int:
        if max_tokens is None:
            own = self._files.params.get("num_predict", -1)
            max_tokens = own if isinstance(own, int) and own > 0 else self.backend.context
        return whole("max_tokens", max_tokens, 0)


def _followed(request: Request, cancel: Any, progress: Any) -> Request:
    """The request of a caller who may cancel it and hears how far its prompt is."""
    _check_cancel(cancel)
    called("progress", progress, "a function that takes a PromptProgress")
    return replace(request, cancel=cancel, progress=progress)


def _check_cancel(cancel: Any) -> None:
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise SettingsError(f"cancel is {shown(cancel)}; it must be an Event, of threading or asyncio.")
