"""What a reply tells beside its text: why it ended, what it took, and the log-probabilities of its tokens."""

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from wgemma.engine.backend import Backend
from wgemma.engine.request import Request
from wgemma.errors import SettingsError
from wgemma.model.passes import SOFT
from wgemma.text.tokenizer import Tokenizer

FinishReason: TypeAlias = Literal["stop", "length", "tool", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Prompt tokens, how many of them were reused from the KV cache, and generated tokens."""

    prompt: int
    reused: int
    generated: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, its text, and its log-probability before temperature, penalties and bias. `alternatives` are the most
    likely tokens in its place, the likeliest first, as many as `logprobs` asks for."""

    id: int
    text: str
    logprob: float
    alternatives: tuple["TokenLogprob", ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reply ended. Streams tell their answer by it; readers never see it."""

    finish_reason: FinishReason
    usage: Usage
    prompt_logprobs: Sequence[TokenLogprob] = ()


def spelled(tokenizer: Tokenizer, pairs: Sequence[tuple[int, float]]) -> list[TokenLogprob]:
    """A token's own (id, log-probability) and its alternatives' as one `TokenLogprob`; none if there are no pairs."""
    told = [TokenLogprob(token, tokenizer.decode([token]), value) for token, value in pairs]
    return [TokenLogprob(told[0].id, told[0].text, told[0].logprob, tuple(told[1:]))] if told else []


async def scored(backend: Backend, tokenizer: Tokenizer, request: Request) -> Ending:
    """Computes the prompt and generates nothing. If log-probabilities are asked for, they are those of the prompt's
    tokens: of all but the first, which follows nothing, and those that stand for images and sounds."""
    ids, count = request.ids, request.sampling.logprobs
    if count is None:
        async for _ in backend.generate(request):
            pass
        reason: FinishReason = "cancelled" if request.cancelled() else "length"
        return Ending(reason, Usage(len(ids), backend.reused, 0))
    found: list[TokenLogprob] = []
    following = iter(ids[1:])
    async with aclosing(backend.logits(ids, (), request.adapter)) as parts:
        async for part in parts:
            if request.cancelled():
                return Ending("cancelled", Usage(len(ids), 0, 0))
            for pairs in _logprobs(part, backend.vocab, following, count):
                found += spelled(tokenizer, pairs)
    return Ending("length", Usage(len(ids), 0, 0), found)


def _logprobs(logits: bytes, vocab: int, following: Iterator[int], count: int) -> Iterator[list[tuple[int, float]]]:
    """For each row, the token that follows it and the best `count`, as (id, log-probability)."""
    try:
        import numpy as np

        from wgemma.reference.sampling import ranked
    except ImportError:
        raise SettingsError("the log-probabilities of a prompt need NumPy, which is missing here.") from None

    # The rows come first: `zip` takes no token if there is no row for it.
    for row, token in zip(np.frombuffer(logits, np.float32).reshape(-1, vocab), following, strict=False):
        if token < SOFT:
            yield ranked(row, token, count)
