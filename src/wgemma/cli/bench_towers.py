"""How long images and sound take to encode, for `wgemma bench`: from host memory to rows on the GPU."""

import random
from array import array
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from time import perf_counter as clock
from typing import Any

from wgemma.cli.bench_timing import typical
from wgemma.engine.towers import Encoder
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer, Device
from wgemma.model.audio import LONGEST
from wgemma.model.mel import RATE
from wgemma.sync import run

PICTURE = (1920, 1344)  # fills either budget: 40 × 28 tokens at full size, 20 × 14 at half
BUDGETS = (280, 1120)


@dataclass(frozen=True, slots=True)
class Look:
    """One image through the vision tower."""

    tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class Listen:
    """One sound through the audio tower."""

    seconds: float
    tokens: int
    ms: float
    times_real_time: float


def looks(device: Device, towers: Encoder[Buffer], repeat: int) -> Iterator[Look]:
    """An image of noise at each budget."""
    width, height = PICTURE
    pixels = Pixels(width, height, random.Random(0).randbytes(4 * width * height))

    def look(budget: int) -> Callable[[], Coroutine[Any, Any, Buffer]]:
        return lambda: towers.see(pixels, budget)

    for budget in BUDGETS:
        yield Look(towers.image_tokens(width, height, budget), 1e3 * _seconds(device, towers, look(budget), repeat))


def listens(device: Device, towers: Encoder[Buffer], repeat: int) -> Iterator[Listen]:
    """Noise of the longest duration the tower takes in one piece."""
    dice, length = random.Random(0), LONGEST / RATE
    samples = array("f", (dice.uniform(-1, 1) for _ in range(LONGEST)))
    seconds = _seconds(device, towers, lambda: towers.hear(samples), repeat)
    yield Listen(length, towers.sound_tokens(LONGEST), 1e3 * seconds, length / seconds)


def _seconds(
    device: Device, towers: Encoder[Buffer], encode: Callable[[], Coroutine[Any, Any, Buffer]], repeat: int
) -> float:
    """Seconds per encoding, not counting the first, which loads the tower."""

    def once() -> float:
        start = clock()
        rows = run(encode())
        run(device.wait())
        seconds = clock() - start
        towers.drop(rows)
        return seconds

    return typical(device, once, repeat)
