"""OpenAI's older completions: prompts that are continued. Each prompt has `n` choices, in order."""

from collections.abc import Iterable, Sequence
from typing import Any

from wgemma.engine.endings import TokenLogprob
from wgemma.serve.ask import Ask, Event, Finish, Text, Whole
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.fields import Fields, model_of
from wgemma.serve.openai import REASONS, error, sampling, usage
from wgemma.serve.problems import Problem, bad
from wgemma.serve.wire import SSE, data, fresh_id, now

MOST_TOKENS = 16  # as OpenAI has it, if the request does not say


def read_completion(fields: Fields) -> Ask:
    fields.refuse("echo", "the prompt is not repeated.")
    fields.refuse("suffix", "the model continues text, it does not fill gaps.")
    n = fields.whole("n", 1, BOUNDS.n) or 1
    best = fields.whole("best_of", 0, BOUNDS.n)
    if best not in (None, 0, n):
        raise bad("best_of is not supported: ask for n choices and take the best.", "best_of")
    most = fields.whole("max_tokens", 0, BOUNDS.tokens)
    return Ask(
        model=model_of(fields),
        prompts=read_prompts(fields, "prompt", BOUNDS.prompts),
        stream=fields.flag("stream"),
        max_tokens=MOST_TOKENS if most is None else most,
        stop=fields.stops("stop"),
        n=n,
        sampling=sampling(fields),
        logprobs=fields.whole("logprobs", 0, BOUNDS.logprobs),
    )


def read_prompts(fields: Fields, name: str, most: int) -> list[str | list[int]]:
    """A text, token ids, or several of either."""
    given = fields.any(name)
    if isinstance(given, str):
        found: list[Any] = [given]
    elif isinstance(given, list) and given and all(map(_is_id, given)):
        found = [given]
    else:
        found = fields.items(name, most)
    for one in found:
        if not isinstance(one, str) and not (isinstance(one, list) and one and all(map(_is_id, one))):
            raise bad(f"{name} must be text, token ids, or a list of either.", name)
    if not found:
        raise bad(f"{name} is missing.", name)
    if sum(map(len, found)) > BOUNDS.prompt:
        raise bad(f"{name} is longer than {BOUNDS.prompt} characters.", name)
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 30


class CompletionWriter:
    """A text completion, whole or in chunks."""

    media_type = SSE

    def __init__(self, ask: Ask, usage: bool = False) -> None:
        self.ask = ask
        self.usage = usage
        self.id, self.created = fresh_id("cmpl-"), now()
        self._answer = Whole()
        self._lengths = [0] * (len(ask.prompts) * ask.n)  # of the texts so far

    def begin(self) -> Iterable[str]:
        return ()

    def write(self, event: Event) -> Iterable[str]:
        if isinstance(event, Text):
            logprobs = self._logprobs(event.logprobs, self._lengths[event.index])
            self._lengths[event.index] += len(event.text)
            yield self._chunk([self._choice(event.index, event.text, logprobs, None)])
        elif isinstance(event, Finish):
            self._answer.add(event)
            yield self._chunk([self._choice(event.index, "", None, REASONS[event.reason])])

    def end(self) -> Iterable[str]:
        if self.usage:
            yield data({**self._head(), "choices": [], "usage": usage(self._answer.usage(self.ask.n))})
        yield "data: [DONE]\n\n"

    def fail(self, problem: Problem) -> Iterable[str]:
        yield data(error(problem))

    def whole(self, answer: Whole) -> dict[str, Any]:
        choices = [
            self._choice(index, choice.text, self._logprobs(choice.logprobs, 0), REASONS[choice.reason])
            for index, choice in enumerate(answer.choices)
        ]
        return {**self._head(), "choices": choices, "usage": usage(answer.usage(self.ask.n))}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.ask.model,
            "system_fingerprint": "wgemma",
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> str:
        chunk = {**self._head(), "choices": choices}
        return data({**chunk, "usage": None} if self.usage else chunk)

    def _choice(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, found: Sequence[TokenLogprob], offset: int) -> dict[str, Any] | None:
        """In the older form: a list of each thing."""
        if self.ask.logprobs is None or not found:
            return None
        offsets = []
        for one in found:
            offsets.append(offset)
            offset += len(one.text)
        return {
            "tokens": [one.text for one in found],
            "token_logprobs": [max(one.logprob, -9999.0) for one in found],
            "top_logprobs": [{a.text: max(a.logprob, -9999.0) for a in one.alternatives} for one in found],
            "text_offset": offsets,
        }
