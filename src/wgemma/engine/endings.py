"""What a reply tells beside its text: why it ended, what it took, and the log-probabilities of its tokens."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, TypeAlias

from wgemma.engine.backend import Backend
from wgemma.engine.request import Origin, PromptProgress, Request
from wgemma.errors import SettingsError
from wgemma.model.passes import SOFT
from wgemma.text.tokenizer import Tokenizer

FinishReason: TypeAlias = Literal["stop", "length", "tool", "cancelled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Prompt tokens, how many of them were reused from the KV cache, and generated tokens. `computed` are the prompt's
    tokens that were not reused, or fewer if it was cancelled. `prompt_seconds` end with the first token, and
    `generation_seconds` go from there to the last. `dropped` counts the messages that were left out because the context
    is full. Of the generated tokens, `forced` were not drawn, because nothing else could follow, and `redrawn` were
    drawn again, because a format forbade the first."""

    prompt: int
    reused: int
    generated: int
    computed: int = 0
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    dropped: int = 0
    forced: int = 0
    redrawn: int = 0


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
    """How a reply ended. Streams tell their answer by it; readers never see it. `complete`: the model ended it, and no
    stop string, limit or caller did. `parse` reads the text of a complete answer that has a format."""

    finish_reason: FinishReason
    usage: Usage
    prompt_logprobs: Sequence[TokenLogprob] = ()
    complete: bool = False
    parse: Callable[[str], Any] | None = None
    stop: str | None = None  # the stop string that ended it


class Measure:
    """Follows a request: what its prompt and its tokens take. The caller's own `progress` hears of the prompt."""

    def __init__(self, request: Request) -> None:
        self.request = replace(request, progress=self._hear)
        self.generated = 0
        self.origins: Counter[str] = Counter()
        self._tell = request.progress
        self._read = PromptProgress("prompt", 0, len(request.ids))
        self._begun = perf_counter()
        self._first = self._last = 0.0  # when tokens came

    def _hear(self, progress: PromptProgress) -> None:
        if not self._first:  # a reply that goes on after forced tokens does not read its prompt again
            self._read = progress if progress.stage == "prompt" else self._read
            self._tell(replace(progress, reused=len(self.request.ids) - self._read.total))

    def came(self) -> None:
        """A token came, perhaps the last, which ends the reply."""
        self._first = self._first or perf_counter()

    def kept(self, origin: Origin) -> None:
        """It belongs to the reply."""
        self.generated += 1
        self.origins[origin] += 1
        self._last = perf_counter()

    def usage(self) -> Usage:
        prompt, first = len(self.request.ids), self._first or perf_counter()
        seconds = max(self._last - first, 0.0) if self.generated > 1 else 0.0
        return Usage(
            prompt,
            prompt - self._read.total,
            self.generated,
            self._read.done,
            first - self._begun,
            seconds,
            forced=self.origins["forced"],
            redrawn=self.origins["again"],
        )


def spelled(tokenizer: Tokenizer, pairs: Sequence[tuple[int, float]]) -> list[TokenLogprob]:
    """A token's own (id, log-probability) and its alternatives' as one `TokenLogprob`; none if there are no pairs."""
    told = [TokenLogprob(token, tokenizer.decode([token]), value) for token, value in pairs]
    return [TokenLogprob(told[0].id, told[0].text, told[0].logprob, tuple(told[1:]))] if told else []


async def scored(backend: Backend, tokenizer: Tokenizer, request: Request) -> Ending:
    """Computes the prompt and generates nothing. If log-probabilities are asked for, they are those of the prompt's
    tokens: of all but the first, which follows nothing, and those that stand for images and sounds."""
    measure, ids, count = Measure(request), request.ids, request.sampling.logprobs
    if count is None:
        async for _ in backend.generate(measure.request):
            pass
        reason: FinishReason = "cancelled" if request.cancelled() else "length"
        return Ending(reason, measure.usage())
    found: list[TokenLogprob] = []
    following, rows = iter(ids[1:]), 0
    async with backend.turn(), aclosing(backend.logits(ids, (), request.adapter)) as parts:
        async for part in parts:
            rows += len(part) // (4 * backend.vocab)
            measure.request.progress(PromptProgress("prompt", rows, len(ids)))
            if request.cancelled():
                return Ending("cancelled", measure.usage())
            for pairs in _logprobs(part, backend.vocab, following, count):
                found += spelled(tokenizer, pairs)
    return Ending("length", measure.usage(), found)


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
