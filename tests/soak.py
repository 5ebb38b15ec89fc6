"""A randomised soak: generations arrive, end, are cancelled, share prefixes and lose their pages, and every one is held
to an oracle that computes it alone.

The sum order depends on the number of rows, so neighbours may change the last bits. Hence every token is checked
against the logits of computing its sequence alone and afresh: it must be the one that the settings choose from them,
wherever the choice is not closer than MARGIN to another.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.batch import Batch
from wgemma.engine.constraint import Constraint
from wgemma.engine.jobs import Item
from wgemma.engine.request import Request, Token
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.scoring import logits
from wgemma.engine.streams import Stream
from wgemma.model.passes import PAD, SOFT
from wgemma.reference.sampling import distribution, draw_of
from wgemma.sync import iterate, run

MARGIN = 5e-3  # of logits, and of probabilities: ten times what the goldens allow
FLIPS = 0.05  # of an expert model's tokens: a router that is nearly undecided may choose another expert
LEAST = 12
CHECKED = 4  # one in so many generations is held to the oracle, and every one that was disturbed


@dataclass(eq=False)
class Generation:
    """One caller."""

    request: Request
    stream: Stream[Item]
    slow: bool
    given: list[Token] = field(default_factory=list)
    over: bool = False
    left: bool = False

    def read(self) -> None:
        while not self.over and self.stream.has_news():
            item = run(self.stream.read())
            if item is None:
                self.over = True
            elif isinstance(item, Token):
                self.given.append(item)


class Event:
    """What `cancel=` wants."""

    def __init__(self) -> None:
        self.set = False

    def is_set(self) -> bool:
        return self.set


class Soak:
    """`stems` are beginnings that prompts share; `adapters` are settings they may have, and half of them have one of
    the `constraints`."""

    def __init__(
        self,
        runner: Runner,
        stems: Sequence[Sequence[int]],
        adapters: Sequence[Setting] = (BARE,),
        constraints: Sequence[Constraint] = (),
        seed: int = 0,
    ) -> None:
        self.runner = runner
        self.batch = Batch(runner)
        self.dice = random.Random(seed)
        self.stems = stems
        self.adapters = adapters
        self.constraints = constraints
        self.live: list[Generation] = []
        self.done: list[Generation] = []
        self.most = self.put_off = 0

    def soak(self, seconds: float, between: Callable[[], None] = lambda: None) -> None:
        """Lives for so long, and until LEAST have ended; then lets everybody end and checks them."""
        end = perf_counter() + seconds
        while perf_counter() < end or len(self.done) < LEAST:
            self.act()
            between()
        while self.live or self.batch.busy:
            self.turn()
            for generation in self.live:
                generation.read()
            self.collect()
        wrong, tokens = list[str](), 0
        for generation in self.done:
            if generation.left or self.dice.randrange(CHECKED) == 0:
                wrong += check(self.runner, generation.request, generation.given)
                tokens += len(generation.given)
        flips = FLIPS * tokens if self.runner.engine.config.expert_count else 0
        assert len(wrong) <= flips, f"{len(wrong)} of {tokens}: {wrong[:5]}"

    def act(self) -> None:
        chance = self.dice.random()
        if chance < 0.25 and len(self.live) < 3 * self.batch.seats.most:
            for _ in range(self.dice.choice((1, 1, 1, 6))):
                self.arrive()
        elif chance < 0.28 and self.live:
            self.leave(self.dice.choice(self.live))
        for _ in range(self.dice.randrange(4)):
            self.turn()
        self.collect()

    def turn(self) -> None:
        run(self.batch.turn())
        for generation in self.live:
            if not generation.slow or self.dice.random() < 0.02:
                generation.read()

    def arrive(self) -> None:
        dice, vocab = self.dice, self.runner.engine.config.vocab_size
        stem = list(dice.choice(self.stems))
        cut = dice.randrange(1, len(stem)) if dice.random() < 0.3 else len(stem)
        while stem[cut - 1] >= SOFT:
            cut -= 1
        ids = stem[:cut] + [dice.randrange(24, vocab) for _ in range(dice.choice((0, 1, 5, 40)))]
        room = self.runner.engine.context - len(ids)
        marks = [len(stem)] if dice.random() < 0.5 else []
        constraint = dice.choice([*self.constraints, *[None] * max(len(self.constraints), 1)])
        request = Request(
            ids,
            dice.randrange(min(70, max(room, 1))),
            self.settings(),
            dice.choice(self.adapters),
            marks,
            ends=constraint.alphabet.ends if constraint else (),
            constraint=constraint,
            cancel=Event(),
        )
        self.live.append(Generation(request, self.batch.submit(request), slow=dice.random() < 0.1))
        self.most = max(self.most, len(self.live))

    def settings(self) -> Sampling:
        dice = self.dice
        seed = dice.getrandbits(64)
        return dice.choice(
            (
                Sampling(temperature=0),
                Sampling(temperature=1, top_k=0, top_p=1, seed=seed),
                Sampling(temperature=0, repeat_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1),
                Sampling(temperature=0.8, top_k=0, top_p=1, seed=seed, logit_bias={30: 4.0, 31: -50.0}, logprobs=2),
            )
        )

    def leave(self, generation: Generation) -> None:
        """Its reader goes, or cancels."""
        generation.read()
        generation.left = True
        if self.dice.random() < 0.5:
            cancel: Any = generation.request.cancel
            cancel.set = True
        else:
            generation.over = True
            generation.stream.close()

    def collect(self) -> None:
        self.done += [generation for generation in self.live if generation.over]
        self.live = [generation for generation in self.live if not generation.over]


def check(runner: Runner, request: Request, given: Sequence[Token]) -> list[str]:
    """What does not follow from the logits of the sequence alone."""
    ids = [*request.ids, *(token.id for token in given)]
    if not given:
        return []
    rows = np.frombuffer(b"".join(iterate(logits(runner, ids[:-1], (), request.adapter))), np.float32)
    rows = rows.reshape(len(ids) - 1, -1)
    wrong, state, allowed = [], request.state(), None
    for position in range(len(request.ids), len(ids)):
        token = given[position - len(request.ids)]
        if request.constraint is not None and state is not None:
            mask = np.frombuffer(request.constraint.mask(state), np.uint8)
            allowed = np.unpackbits(mask, count=rows.shape[1], bitorder="little").astype(bool)
            state = request.constraint.step(state, token.id)
            assert state is not None, f"token {token.id} at {position} is forbidden"
            assert allowed[token.id]
        if token.origin != "forced":
            wrong += check_token(rows[position - 1], ids[:position], token, request.sampling, runner, allowed)
    return wrong


def check_token(
    row: NDArray[np.float32],
    past: Sequence[int],
    token: Token,
    sampling: Sampling,
    runner: Runner,
    allowed: NDArray[np.bool_] | None = None,
) -> list[str]:
    bias = dict(sampling.logit_bias) | dict.fromkeys(runner.engine.config.suppress_tokens, -np.inf)
    settings: dict[str, Any] = {
        "history": [PAD if i >= SOFT else i for i in past],
        "logit_bias": bias,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repeat_last_n": sampling.repeat_last_n,
        "temperature": sampling.temperature or 1.0,
    }
    again, wrong = token.origin == "again", []
    first = choices(*distribution(row, **settings), sampling, len(past))
    if again:
        assert allowed is not None
        if all(allowed[other] for other in first):
            wrong.append(f"token {token.id} at {len(past)} was drawn again, but {first} was allowed")
        first = choices(*distribution(row, allowed=allowed, **settings), sampling, len(past), again=True)
    if token.id not in first:
        wrong.append(f"token {token.id} at {len(past)} was drawn instead of {first}")
    if sampling.logprobs is not None:
        shifted = row.astype(np.float64) - row.max()
        logs = shifted - np.log(np.exp(shifted).sum())
        assert token.logprobs[0][0] == token.id
        error = max(abs(logs[other] - value) for other, value in token.logprobs)
        if error > MARGIN:
            wrong.append(f"a log-probability at {len(past)} is off by {error}")
    return wrong


def choices(
    tokens: NDArray[np.int64], shares: NDArray[np.float64], sampling: Sampling, position: int, *, again: bool = False
) -> list[int]:
    """The token that the settings choose, and those that are as good within the margin."""
    if sampling.temperature == 0:
        return [int(token) for token in tokens[np.log(shares.max()) - np.log(shares) <= MARGIN]]
    assert sampling.seed is not None
    goal, order = draw_of(sampling.seed, position, again=again), np.argsort(tokens)
    ends = np.cumsum(shares[order])
    near = (ends - shares[order] - MARGIN < goal) & (goal < ends + MARGIN)
    return [int(token) for token in tokens[order][near]]
