"""Which examples make which step: a function of the examples, the settings and the epoch alone, so that a run taken up
again at any step meets exactly what it would have met.

A pack is examples behind each other in one pass, at most `seq` tokens together; each sees only itself. A step is
`batch` packs, the last one of an epoch perhaps fewer: every example is met once in every epoch. The loss of a step is
the sum over all its targets divided by their number, so it does not matter how its examples are packed.
"""

import random
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wgemma.errors import DataError
from wgemma.train.data import Example


class Pack(tuple[Example, ...]):
    """Examples of one pass, in the order of its rows."""

    __slots__ = ()

    @property
    def rows(self) -> int:
        return sum(map(len, self))

    @property
    def targets(self) -> int:
        return sum(example.targets for example in self)


@dataclass(frozen=True, slots=True)
class Step:
    """What one update of the weights is made from."""

    epoch: int
    packs: tuple[Pack, ...]

    @property
    def rows(self) -> int:
        return sum(pack.rows for pack in self.packs)

    @property
    def targets(self) -> int:
        return sum(pack.targets for pack in self.packs)


def split(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Examples to train on and to validate with: a share drawn by the seed, at least one of each."""
    if not share:
        return list(examples), []
    if len(examples) < 2:
        raise DataError("one example cannot be split; take validation 0, or a file of its own for it.")
    count = min(max(round(share * len(examples)), 1), len(examples) - 1)
    held = set(random.Random(f"{seed} validation").sample(range(len(examples)), count))
    kept = [example for i, example in enumerate(examples) if i not in held]
    return kept, [example for i, example in enumerate(examples) if i in held]


def pack(examples: Sequence[Example], seq: int) -> list[Pack]:
    """Best fit: an example joins the pack with the least room that it fits into, or opens one."""
    packs: list[list[Example]] = []
    rooms: list[tuple[int, int]] = []  # (room, pack), in order
    for example in examples:
        size = len(example)
        place = bisect_left(rooms, (size, 0))
        room, index = rooms.pop(place) if place < len(rooms) else (seq, len(packs))
        if index == len(packs):
            packs.append([])
        packs[index].append(example)
        insort(rooms, (room - size, index))
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
        """How many steps so many epochs are."""
        return sum(len(self.epoch(number)) for number in range(epochs))

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Step after step from `start` on, epoch after epoch without end."""
        number = 0
        while True:
            steps = self.epoch(number)
            yield from steps[start:]
            start = max(start - len(steps), 0)
            number += 1


# -- what a step's packs become on the GPU


def passes(packs: Sequence[Pack], rows: int) -> Iterable[list[Pack]]:
    """Packs that go through together: as many as fit, in their order."""
    some: list[Pack] = []
    for pack in packs:
        if some and sum(other.rows for other in some) + pack.rows > rows:
            yield some
            some = []
        some.append(pack)
    if some:
        yield some


def bucket(rows: int) -> int:
    """The rows a pass is recorded for: powers of two from 32 on, and half way between."""
    size = 32
    while size < rows:
        if size >= 64 and size * 3 // 2 >= rows:
            return size * 3 // 2
        size *= 2
    return size
