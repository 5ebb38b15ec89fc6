"""Turns the token ids of a continued text into pieces, one per token, cut at stop strings. Knows no chats."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from wgemma.engine.backend import Backend
from wgemma.engine.endings import Ending, FinishReason, Measure, TokenLogprob, scored, spelled
from wgemma.engine.request import Request
from wgemma.engine.stops import StopStrings
from wgemma.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """A generated token and the text it completes."""

    id: int
    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list)  # its own, if asked for
    index: int = 0  # which of `n` alternatives it belongs to


async def pieces(
    backend: Backend, tokenizer: Tokenizer, request: Request, keep: Callable[[list[int]], None] = lambda ids: None
) -> AsyncGenerator[Piece | Ending, None]:
    """The text after the request's ids, token by token, and how it ended. `keep` is told the ids that are computed in
    the end."""
    if request.max_tokens == 0:
        yield await scored(backend, tokenizer, request)
        return
    stops, decoder = StopStrings(request.stops), tokenizer.stream(keep=())
    reason: FinishReason = "length"
    complete = False
    measure = Measure(request)
    held: Piece | None = None  # a token whose text is incomplete waits for the next one
    generated: list[int] = []
    request = replace(measure.request, ends=tokenizer.stop_ids)
    try:
        async with aclosing(backend.generate(request)) as tokens:
            async for token in tokens:
                measure.came()
                if token.id in tokenizer.stop_ids:
                    reason, complete = "stop", True
                    break
                measure.kept(token.origin)
                generated.append(token.id)
                if held:
                    yield held
                piece = Piece(token.id, stops.feed(decoder.push(token.id)), spelled(tokenizer, token.logprobs))
                held = piece if decoder.pending or stops.pending else None
                if held is None:
                    yield piece
                if stops.found:
                    reason = "stop"
                    break
                if request.cancelled():
                    break
    finally:
        if generated:
            keep([*request.ids, *generated][:-1])
    if held:
        yield replace(held, text=held.text + stops.feed(decoder.finish()) + stops.finish())
    if reason == "length" and request.cancelled():
        reason = "cancelled"
    yield Ending(reason, measure.usage(), complete=complete, stop=stops.found)
