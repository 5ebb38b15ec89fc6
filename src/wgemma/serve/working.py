"""From an Ask to its Events, on a loaded model."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from time import perf_counter
from typing import Any

from wgemma.api import Model, Part, PromptProgress
from wgemma.errors import Error
from wgemma.serve.ask import Ask, Call, Event, Finish, Started, Text, Thinking
from wgemma.serve.models import Lent
from wgemma.text.tokenizer import MARKUP, Tokenizer
from wgemma.together import merged

AT_A_TIME = 64  # prompts of one request


class Hearing:
    """What the engine says about the prompt: when it began to read it, and how long it is."""

    def __init__(self) -> None:
        self.begun: float | None = None  # in the time of perf_counter
        self.prompt = self.reused = 0

    def __call__(self, progress: PromptProgress) -> None:
        self.begun = self.begun or perf_counter()
        if progress.stage == "prompt":
            self.prompt, self.reused = progress.total + progress.reused, progress.reused


async def events(lent: Lent, ask: Ask, hearing: Hearing) -> AsyncGenerator[Event, None]:
    """The answer, event by event. Closing this cancels it."""
    stream = _chat(lent, ask, hearing) if ask.messages is not None else _continue(lent, ask, hearing)
    started = False
    async with aclosing(stream):
        async for event in stream:
            if not started:
                started = True
                yield Started(hearing.prompt, hearing.reused, lent.load_seconds)
            yield event


def _options(lent: Lent, ask: Ask, hearing: Hearing) -> dict[str, Any]:
    """What chats and prompts have in common; only what was asked for, so that the model's own settings count."""
    options: dict[str, Any] = {**ask.sampling, "adapter": lent.adapter, "progress": hearing, "n": ask.n}
    if ask.max_tokens is not None:
        options["max_tokens"] = ask.max_tokens
    if ask.stop:
        options["stop"] = list(ask.stop)
    if ask.logprobs is not None:
        options["logprobs"] = ask.logprobs
    return options


def _chat_options(lent: Lent, ask: Ask, hearing: Hearing) -> dict[str, Any]:
    options = _options(lent, ask, hearing) | {"think": ask.think, "shift": ask.shift}
    if ask.thinking_budget is not None:
        options["thinking_budget"] = ask.thinking_budget
    if ask.format is not None:
        options["format"] = ask.format
    if ask.tools:
        options["tools"] = list(ask.tools)
        if ask.tool_choice != "auto":
            options["tool_choice"] = ask.tool_choice
        if not ask.parallel:
            options["parallel_tool_calls"] = False
    return options


async def _chat(lent: Lent, ask: Ask, hearing: Hearing) -> AsyncGenerator[Event, None]:
    assert ask.messages is not None
    begin = partial(lent.model.achat, ask.messages, **_chat_options(lent, ask, hearing))
    # Formats and tools are compiled in a thread, where that holds up nobody.
    answer = await asyncio.to_thread(begin) if ask.format is not None or ask.tools else begin()
    calls = dict.fromkeys(range(ask.n), 0)
    callable_tools = bool(ask.tools) and ask.tool_choice != "none"
    async with answer:
        async for part in answer:
            if part.tool_call is not None and not callable_tools:
                continue  # it called what nobody offered
            for event in _events(part, calls):
                yield event


def _events(part: Part, calls: dict[int, int]) -> Iterator[Event]:
    """`calls` counts those of each alternative. A call that cannot be read is text."""
    if part.finish_reason is not None and part.usage is not None:
        reason = "stop" if part.finish_reason == "tool" and not calls[part.index] else part.finish_reason
        yield Finish(reason, part.usage, part.index, part.stop)
    elif part.tool_call is not None:
        call = part.tool_call
        if call.error is None:
            yield Call(call.name, call.arguments, calls[part.index], part.index)
            calls[part.index] += 1
        else:
            yield Text(call.raw, part.index)
    elif part.kind == "thinking":
        if part.text:
            yield Thinking(part.text, part.index)
    else:
        logprobs = [token for token in part.logprobs if token.text not in MARKUP]
        if part.text or logprobs:
            yield Text(part.text, part.index, logprobs)


async def _continue(lent: Lent, ask: Ask, hearing: Hearing) -> AsyncGenerator[Event, None]:
    """Continues every prompt; the answers to the i-th have the indices from i · n on."""
    options = _options(lent, ask, hearing)
    begins: list[Callable[[], AsyncGenerator[Event, None]]] = [
        partial(_continuation, lent.model, prompt_ids(lent.model.tokenizer, prompt), options, ask.n, i * ask.n)
        for i, prompt in enumerate(ask.prompts)
    ]
    async with aclosing(merged(begins, AT_A_TIME)) as items:
        async for _, item in items:
            if isinstance(item, Error):
                raise item
            yield item


async def _continuation(
    model: Model, ids: list[int], options: dict[str, Any], n: int, first: int
) -> AsyncGenerator[Event, None]:
    async with model.agenerate(ids, **options) as answer:
        async for piece in answer:
            if piece.text or piece.logprobs:
                yield Text(piece.text, first + piece.index, piece.logprobs)
        for i, one in enumerate(answer.alternatives if n > 1 else [answer]):
            ending = one._ending
            assert ending is not None
            yield Finish(ending.finish_reason, ending.usage, first + i, ending.stop)


def prompt_ids(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """A prompt that is no chat: markup in it counts, and it begins with <bos> in any case."""
    if not isinstance(prompt, str):
        return list(prompt)
    ids, bos = tokenizer.encode(prompt, special=True), tokenizer.id("<bos>")
    return ids if ids[:1] == [bos] else [bos, *ids]
