"""What a format costs: `python bench/formats.py [MODEL] [--rates 0,2,5,10 --tokens 512 --sequences 1,8]`.

Tokens per second of free answers, and of answers of which some per cent were drawn again: at random places the first
token is called forbidden and all others are allowed, whatever the model draws. That is what a format costs a model of
which so many draws are illegal; nothing is forced. Each rate is compared with the free speed above it.

Without MODEL, the embedded model answers its own questions of JSON and tool calls instead, in a format and with tools,
and the table says how many of its draws were illegal.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter as clock
from typing import Any

import wgemma

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools" / "tiny"))
import skills

from wgemma.cli.bench import whole_numbers
from wgemma.constraints import Constraints
from wgemma.engine.constraint import Constraint, Masking, State
from wgemma.engine.request import Request
from wgemma.engine.sampling import Sampling
from wgemma.together import together

PROMPT = 512  # tokens


class Interrupted(Constraint):
    """Forbids the first token drawn at some places; the state counts tokens."""

    def __init__(self, constraints: Constraints, rate: float, seed: int) -> None:
        super().__init__(constraints.alphabet)
        self.dice, self.rate = random.Random(seed), rate
        self.refused: dict[int, int] = {}  # by place
        self.seen: set[int] = set()

    def start(self, *, in_thought: bool, written: Sequence[int] = ()) -> State:
        return State("text", 0)  # type: ignore[arg-type]

    def step(self, state: State, token: int) -> State | None:
        place: Any = state.inner
        if place not in self.seen:
            self.seen.add(place)
            if self.dice.random() < self.rate:
                self.refused[place] = token
        return None if self.refused.get(place) == token else State("text", place + 1)

    def masking(self, state: State) -> Masking:
        place: Any = state.inner
        return self.alphabet.mask([self.refused[place]], all_but=True)
        yield

    def known_mask(self, state: State) -> None:
        return None

    def forced(self, state: State, most: int) -> list[int]:
        return []


def rate_of(model: wgemma.Model, count: int, tokens: int, rate: float | None) -> tuple[float, int]:
    """Tokens per second of `count` answers together, after their prompts, and how many were drawn again."""
    constraints, dice = model._constraints, random.Random(7)
    free = dict.fromkeys(model.tokenizer.stop_ids, -1e9)
    requests = [
        Request(
            [2, *(dice.randrange(model.backend.vocab // 2, model.backend.vocab) for _ in range(PROMPT))],
            tokens,
            Sampling(seed=i, logit_bias=free),
            constraint=None if rate is None else Interrupted(constraints, rate, i),
        )
        for i in range(count)
    ]
    begins = [lambda request=request: model.backend.generate(request) for request in requests]
    again, times = 0, []
    for _, token in together(begins, count):
        again += getattr(token, "origin", "") == "again"
        if isinstance(token, BaseException):
            raise token
        times.append(clock())
    first = times[count]  # everybody has begun
    return (len(times) - count) / (times[-1] - first), again


def own_rate(count: int) -> None:
    """How many draws of the embedded model are illegal, in `count` questions of each kind."""
    with wgemma.load() as model:
        for name, skill in (("JSON", skills.extraction), ("tool calls", skills.tool_call)):
            for temperature in (0.0, 1.0):
                drawn = forced = again = right = 0
                for seed in range(count):
                    case = skill(random.Random(seed), test=True)
                    *messages, wanted = json.loads(json.dumps(case.messages))
                    options: dict[str, Any] = {"tools": case.tools} if case.tools else {"format": "json"}
                    answer = model.chat(messages, temperature=temperature, seed=1, max_tokens=100, **options)
                    drawn += answer.usage.generated - answer.usage.forced
                    forced, again = forced + answer.usage.forced, again + answer.usage.redrawn
                    calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in answer.tool_calls]
                    right += (answer.text, calls) == (wanted["content"], wanted.get("tool_calls", []))
                print(
                    f"{name:10} temperature {temperature:.0f}: {again} of {drawn} draws illegal "
                    f"({100 * again / drawn:.2f} %), {forced} tokens forced, {right} of {count} answers right"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description="What a format costs.")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rates", type=whole_numbers(0), default=[0, 2, 5, 10], help="per cent of illegal draws")
    parser.add_argument("--sequences", type=whole_numbers(1), default=[1])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--questions", type=int, default=100, help="for the embedded model, of each kind")
    options = parser.parse_args()
    if options.model is None:
        own_rate(options.questions)
        return
    context = PROMPT + options.tokens + 64
    slots = max(options.sequences)
    with wgemma.load(options.model, precision=options.precision, context=context, slots=slots) as model:
        for count in options.sequences:
            best: dict[float | None, tuple[float, int]] = {}
            for _ in range(options.rounds):
                for rate in (None, *(percent / 100 for percent in options.rates)):
                    found = rate_of(model, count, options.tokens, rate)
                    best[rate] = max(best.get(rate, (0.0, 0)), found)
            free = best[None][0]
            print(f"{count} sequences: free {free:.1f} tok/s")
            for rate, (speed, again) in best.items():
                if rate is not None:
                    print(
                        f"  {100 * rate:4.0f} % illegal: {speed:.1f} tok/s, {100 * speed / free:.1f} %, {again} again"
                    )


if __name__ == "__main__":
    sys.exit(main())
