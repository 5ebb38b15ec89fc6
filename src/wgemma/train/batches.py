"""Which examples form which step: this depends only on the examples, the settings and the epoch, so a run resumed at
any step sees exactly what it would have seen.

A pack is several examples, one after another, in one pass, at most `seq` tokens together; each attends only to itself.
A step is `batch` packs, or fewer at the end of an epoch: every epoch uses every example once. A step's loss is the sum
over all targets divided by their number, so it does not depend on the packing.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wgemma.errors import DataError
from wgemma.train.data import Example


class Pack(tuple[Example, ...]):
    """The examples of one pass, in row order."""

    __slots__ = ()

    @property
    def rows(self) -> int:
        return sum(map(len, self))

    @property
    def targets(self) -> int:
        return sum(example.targets for example in self)


@dataclass(frozen=True, slots=True)
class Step:
    """The packs of one weight update."""

    epoch: int
    packs: tuple[Pack, ...]

    @property
    def rows(self) -> int:
        return sum(pack.rows for pack in self.packs)

    @property
    def targets(self) -> int:
        return sum(pack.targets for pack in self.packs)


def split(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Examples for training and for validation, a random share chosen by the seed; at least one of each."""
    if not share:
        return list(examples), []
    if len(examples) < 2:
        raise DataError("one example cannot be split. Set validation to 0, or give it a separate file.")
    count = min(max(round(share * len(examples)), 1), len(examples) - 1)
    held = set(random.Random(f"{seed} validation").sample(range(len(examples)), count))
    kept = [example for i, example in enumerate(examples) if i not in held]
    return kept, [example for i, example in enumerate(examples) if i in held]


def pack(examples: Sequence[Example], seq: int) -> list[Pack]:
    """Best fit: an example goes into the fullest pack that has room for it, or into a new one."""
    packs: list[list[Example]] = []
    spaces: list[tuple[int, int]] = []  # (space, pack), in order
    for example in examples:
        size = len(example)
        place = bisect_left(spaces, (size, 0))
        space, index = spaces.pop(place) if place < len(spaces) else (seq, len(packs))
        if index == len(packs):
            packs.append([])
        packs[index].append(example)
        insort(spaces, (space - size, index))
    return [Pack(examples) for examples in packs]


@dataclass(frozen=True, slots=True)
class Batches:
    """The steps of a run."""

    examples: Sequence[Example]
    batch: int
    seq: int
    seed: int
    packing: bool = True

    def epoch(self, number: int) -> list[Step]:
        """The steps of one epoch; the first is 0."""
        order = list(self.examples)
        random.Random(f"{self.seed} {number}").shuffle(order)
        packs = pack(order, self.seq) if self.packing else [Pack((example,)) for example in order]
        return [Step(number, tuple(packs[at : at + self.batch])) for at in range(0, len(packs), self.batch)]

    def count(self, epochs: int) -> int:
        """The number of steps in this many epochs."""
        return sum(len(self.epoch(number)) for number in range(epochs))

    def steps(self, start: int = 0) -> Iterator[Step]:
        """An endless stream of steps from `start` on, epoch after epoch."""
        number = 0
        while True:
            steps = self.epoch(number)
            yield from steps[start:]
            start = max(start - len(steps), 0)
            number += 1


# -- packs to GPU passes


def passes(packs: Sequence[Pack], rows: int) -> Iterable[list[Pack]]:
    """Groups packs into passes: as many as fit, in order."""
    some: list[Pack] = []
    for pack in packs:
        if some and sum(other.rows for other in some) + pack.rows > rows:
            yield some
            some = []
        some.append(pack)
    if some:
        yield some


def bucket(rows: int) -> int:
    """The rows a pass is recorded for: powers of two from 32 on, and the midpoints between them."""
    size = 32
    while size < rows:
        if size >= 64 and size * 3 // 2 >= rows:
            return size * 3 // 2
        size *= 2
    return size
