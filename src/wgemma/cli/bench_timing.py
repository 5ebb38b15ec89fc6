"""How `wgemma bench` takes its times: the median of several, of a GPU that is awake."""

from collections.abc import Callable
from statistics import median
from time import perf_counter as clock
from typing import TypeVar

from wgemma.gpu.device import Device

AWAKE = 1.5  # seconds of work until the clock of a GPU that was idle has risen

T = TypeVar("T")


def warmed_up(device: Device, work: Callable[[], T], repeat: int) -> list[T]:
    """What `work` gives, so often. First it is done in vain: once, since that compiles kernels, and on a GPU for a
    while, since that let its clock fall."""
    end = clock() + (0 if device.info.kind == "CPU" else AWAKE)
    work()
    while clock() < end:
        work()
    return [work() for _ in range(repeat)]


def typical(device: Device, work: Callable[[], float], repeat: int) -> float:
    """The median of what `work` gives."""
    return median(warmed_up(device, work, repeat))
