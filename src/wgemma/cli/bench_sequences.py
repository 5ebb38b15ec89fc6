"""Measures several sequences at once: the batch by itself, and what arrives at a reader of `generate_many`."""

from collections.abc import Generator
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import median
from time import perf_counter as clock
from time import sleep

from wgemma.api import Model
from wgemma.cli.bench_timing import warmed_up
from wgemma.engine.batch import Batch
from wgemma.engine.request import Request, Token
from wgemma.engine.sampling import Sampling
from wgemma.sync import run

GREEDY = Sampling(temperature=0, seed=0)


@dataclass(frozen=True, slots=True)
class Together:
    """`sequences` prompts of `prompt` tokens, and `tokens` more of each once all have begun."""

    sequences: int
    prompt: int
    tokens: int
    prefill_s: float  # until every sequence has its first token
    tokens_per_s: float  # of all sequences, from then on
    streamed_tokens_per_s: float  # the same for a reader of `generate_many`


class Sequences:
    """Measures one model. Token ids are random and differ between sequences and runs."""

    def __init__(self, model: Model, repeat: int) -> None:
        self.model = model
        self.runner = model.backend.runner
        self.repeat = repeat
        self._seeds = count()
        model.tokenizer.stop_ids = frozenset()  # an answer to a random prompt may end at any time

    def measure(self, sequences: int, prompt: int, tokens: int) -> Together:
        def direct() -> tuple[float, float]:
            return timed(self._direct(self._prompts(sequences, prompt)), sequences, tokens)

        def streamed() -> tuple[float, float]:
            return timed(self._streamed(self._prompts(sequences, prompt)), sequences, tokens)

        device = self.runner.device
        alone = warmed_up(device, direct, self.repeat)
        read = warmed_up(device, streamed, self.repeat)
        first, speed = median(first for first, _ in alone), median(speed for _, speed in alone)
        return Together(sequences, prompt, tokens, first, speed, median(speed for _, speed in read))

    def _prompts(self, sequences: int, prompt: int) -> list[list[int]]:
        """Prompts that nothing is known of."""
        self.runner.paging.prefixes.clear()
        dice, vocab = Random(next(self._seeds)), self.runner.engine.config.vocab_size
        return [[dice.randrange(vocab) for _ in range(prompt)] for _ in range(sequences)]

    def _direct(self, prompts: list[list[int]]) -> Generator[int, None, None]:
        """Whose token came, as the batch gives them, in this thread."""
        batch = Batch(self.runner)
        streams = [batch.submit(Request(ids, self.runner.engine.context, GREEDY)) for ids in prompts]
        try:
            while batch.busy:
                run(batch.turn())
                for index, stream in enumerate(streams):
                    while stream.unread:
                        if isinstance(run(stream.read()), Token):
                            yield index
        finally:
            for stream in streams:
                stream.close()
            while batch.busy:
                run(batch.turn())

    def _streamed(self, prompts: list[list[int]]) -> Generator[int, None, None]:
        """Whose token came, as `generate_many` gives them."""
        try:
            with self.model.generate_many(prompts, temperature=0) as answers:
                for index, _ in answers:
                    yield index
        finally:
            while not self.model.backend.idle:
                sleep(0.001)


def timed(arrivals: Generator[int, None, None], sequences: int, tokens: int) -> tuple[float, float]:
    """Seconds until every sequence has a token, and tokens per second from then on until each has `tokens` more."""
    start, first, last = clock(), 0.0, 0.0
    given = [0] * sequences  # since all have begun
    waiting = set(range(sequences))
    try:
        for index in arrivals:
            if first:
                given[index] += 1
                last = clock()
            if not first or given[index] == tokens:
                waiting.discard(index)
            if not waiting and first:
                break
            if not waiting:
                first, waiting = clock(), set(range(sequences))
    finally:
        arrivals.close()
    return first - start, sum(given) / max(last - first, 1e-9)
