"""What a call for answers becomes: options that are checked once, then a stream for every prompt and alternative."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, Unpack

from wgemma.checks import called, shown, texts, whole, yes_or_no
from wgemma.constraints import Wanted
from wgemma.engine.adapting import ALL, Choice, Setting
from wgemma.engine.continuing import Piece, pieces
from wgemma.engine.endings import Ending
from wgemma.engine.prefix import Replies
from wgemma.engine.replying import Part, Reply
from wgemma.engine.request import Cancel, Hear, Request, unheard
from wgemma.engine.sampling import Sampling
from wgemma.engine.shift import fit, messages_in
from wgemma.engine.thinking import Level, thinking
from wgemma.errors import SettingsError, TemplateError
from wgemma.formats import Format, resolve
from wgemma.functions import declarations
from wgemma.habits import refuse_unknown_options
from wgemma.media import Perceiving
from wgemma.numbers import Computing, ids_of
from wgemma.options import SamplingOptions, Tool
from wgemma.text.parts import Content, content_of
from wgemma.text.reply import ReplyParser
from wgemma.text.template import Segment, awaits_tools, opens_in_thought
from wgemma.together import Begin

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Parts: TypeAlias = AsyncGenerator[Part | Ending, None]
Pieces: TypeAlias = AsyncGenerator[Piece | Ending, None]

T = TypeVar("T")

MOST_ALTERNATIVES = 64
_SAMPLING = SamplingOptions.__optional_keys__


class Chat(Protocol):
    """What a conversation remembers: its replies, and the tokens that are computed."""

    _replies: Replies

    def _keep(self, adapter: Setting, ids: list[int]) -> None: ...


class Answering(Perceiving, Computing):
    """A loaded model that answers."""

    def _chat(
        self,
        call: str,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: str | None = None,
        parallel_tool_calls: bool = True,
        format: Any = None,
        think: bool | Level = False,
        max_tokens: int | None = None,
        thinking_budget: int | None = None,
        stop: str | Sequence[str] | None = None,
        cancel: Cancel | None = None,
        progress: Hear = unheard,
        adapter: Choice = ALL,
        shift: bool = True,
        n: int = 1,
        **sampling: Unpack[SamplingOptions],
    ) -> Callable[[Chat, Messages], list[Parts]]:
        """Checks the options at once, and a chat when it is passed to the result, which returns a stream for each
        alternative. A reply begins with the first step of its stream."""
        self._turns.check()
        request = _followed(self._request(call, max_tokens, stop, sampling), cancel, progress)
        thinks, thinking_budget = thinking(think, thinking_budget)
        shape, declared = resolve(format), declarations(tools)
        wanted = Wanted(shape.grammar if shape else None, thinks, request.sampling.logprobs is None)
        constraint = self._constraints.of(wanted, declared, tool_choice, parallel_tool_calls)
        request = replace(request, thinking_budget=thinking_budget, constraint=constraint)
        requests = _alternatives(request, n)
        yes_or_no("shift", shift)

        def begin(conversation: Chat, messages: Messages) -> list[Parts]:
            prompt = self._prompt(messages, declared, thinks)
            media = {id(piece.media): content_of(piece.media) for piece in prompt if piece.media is not None}
            in_thought = opens_in_thought(prompt)

            async def parts(index: int, request: Request) -> Parts:
                await self._constraints.prepare(request.constraint)
                replies, turns, placed = conversation._replies, 0, list[Any]()
                parser = ReplyParser(think=thinks, in_thought=in_thought, tools=declared)
                async with self._turns.take() if media else nullcontext():
                    kept: Sequence[Segment] = prompt
                    if shift:
                        kept, turns = self._fit(replies, prompt, media, request.max_tokens)
                    contents = [media[id(piece.media)] for piece in kept if piece.media is not None]
                    if contents:
                        placed = list(await self.backend.place(contents))
                try:
                    ids = replies.encode(self.tokenizer, kept, self._ids_of_media(contents, placed))
                    ready = self._ready(replace(request, in_thought=in_thought), ids, adapter, shared=n > 1)
                    keep = partial(conversation._keep, ready.adapter) if index == 0 else _forget
                    dropped = messages_in(messages, turns)
                    reply = Reply(self.backend, self.tokenizer, replies, parser, ready, dropped, keep)
                    async with aclosing(reply.parts()) as items:
                        async for part in items:
                            yield _read_by(shape, part)
                finally:
                    self.backend.let_go(placed)

            return [parts(index, request) for index, request in enumerate(requests)]

        return begin

    def _prompt(self, messages: Messages, tools: Any, thinks: bool) -> list[Segment]:
        if isinstance(messages, list | tuple) and not messages:
            raise TemplateError('messages is empty; write [{"role": "user", "content": "Hello"}].')
        prompt = self._prelude.segments(messages, tools=tools, think=thinks, size=self.prompt_style)
        if awaits_tools(prompt):
            raise TemplateError('the last message calls tools; add a message with role "tool" for each result.')
        return prompt

    def _fit(
        self, replies: Replies, prompt: Sequence[Segment], media: Mapping[int, Content], room: int
    ) -> tuple[list[Segment], int]:
        """What of a chat fits, and how many turns do not: `room` tokens are for the reply, or a quarter of the
        context if that is less."""
        context = self.backend.context
        count = partial(replies.count, self.tokenizer)
        return fit(
            prompt,
            context,
            min(context // 4, room),
            count,
            lambda part: self.backend.weigh(media[id(part)]),
            self._prelude.turns,
        )

    def _ready(self, request: Request, ids: Sequence[int], adapter: Choice, *, shared: bool) -> Request:
        """The request with its prompt and its adapters; alternatives that share a prompt go on where it ends."""
        marks = [len(ids) - 1] if shared else []
        return replace(request, ids=ids, adapter=self.backend.adapters.choose(adapter), marks=marks)

    def _generate(
        self,
        call: str,
        conversation: Chat | None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        cancel: Cancel | None = None,
        progress: Hear = unheard,
        adapter: Choice = ALL,
        format: Any = None,
        n: int = 1,
        **sampling: Unpack[SamplingOptions],
    ) -> Callable[[str | Sequence[int]], list[Pieces]]:
        """Like `_chat`, for prompts; `conversation` remembers what was computed."""
        self._turns.check()
        request = _followed(self._request(call, max_tokens, stop, sampling), cancel, progress)
        shape = resolve(format)
        wanted = Wanted(shape.grammar if shape else None, forces=request.sampling.logprobs is None)
        constraint = self._constraints.of(wanted)
        requests = _alternatives(replace(request, constraint=constraint), n)

        def begin(prompt: str | Sequence[int]) -> list[Pieces]:
            ids = self._with_bos(prompt) if isinstance(prompt, str) else ids_of(prompt)

            async def parts(index: int, request: Request) -> Pieces:
                await self._constraints.prepare(request.constraint)
                ready = self._ready(request, ids, adapter, shared=n > 1)
                keep = partial(conversation._keep, ready.adapter) if conversation and index == 0 else _forget
                async with aclosing(pieces(self.backend, self.tokenizer, ready, keep)) as items:
                    async for piece in items:
                        yield _read_by(shape, piece)

            return [parts(index, request) for index, request in enumerate(requests)]

        return begin

    # -- many prompts

    def _each(
        self, name: str, prompts: Iterable[Any], begin: Callable[[Any], AsyncGenerator[Any, None]], cancel: Any
    ) -> Iterator[Begin]:
        """How to begin each answer, until the model is closed or the call is cancelled."""
        if isinstance(prompts, str | bytes | Mapping) or not hasattr(prompts, "__iter__"):
            raise SettingsError(f"{name} is {shown(prompts)}; it must be a list of them, or another iterable.")

        def begins() -> Iterator[Begin]:
            for prompt in prompts:
                if name == "chats" and not isinstance(prompt, list | tuple):
                    raise SettingsError("chats must be a list of chats; for a single one write [messages].")
                self._turns.check()
                if cancel is not None and cancel.is_set():
                    return
                yield partial(begin, prompt)

        return begins()

    @property
    def _at_a_time(self) -> int:
        """How many of many answers are begun at a time: while some are written, the next are ready."""
        slots = self.backend.slots
        return 2 * slots if slots > 1 else 1

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
        params = self._files.params
        own = {name: params[name] for name in params if name in _SAMPLING and name not in settings}
        try:
            Sampling(**own)
        except SettingsError as error:
            raise SettingsError(f"the model's own {error} Set it for this answer, or create the model again.") from None
        return Sampling(**{**own, **settings})

    def _limit(self, max_tokens: int | None) -> int:
        if max_tokens is None:
            own = self._files.params.get("num_predict", -1)
            max_tokens = own if isinstance(own, int) and own > 0 else self.backend.context
        return whole("max_tokens", max_tokens, 0)


def _read_by(format: Format | None, item: T) -> T:
    """The item; a complete answer that has a format can be read by it."""
    if format is not None and isinstance(item, Ending) and item.complete and item.finish_reason == "stop":
        return replace(item, parse=format.parse)
    return item


def _followed(request: Request, cancel: Any, progress: Any) -> Request:
    """The request of a caller who may cancel it and hears how far its prompt is."""
    check_cancel(cancel)
    called("progress", progress, "a function that takes a PromptProgress")
    return replace(request, cancel=cancel, progress=progress)


def check_cancel(cancel: Any) -> None:
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise SettingsError(f"cancel is {shown(cancel)}; it must be an Event, of threading or asyncio.")


def _alternatives(request: Request, n: int) -> list[Request]:
    """`n` of it, which differ by their seeds; the caller hears of one prompt."""
    count = whole("n", n, 1, MOST_ALTERNATIVES)
    others = [replace(request, sampling=request.sampling.alternative(i), progress=unheard) for i in range(1, count)]
    return [request, *others]


def _forget(ids: list[int]) -> None:
    """Only the first alternative of a conversation's own call is what it goes on with."""
