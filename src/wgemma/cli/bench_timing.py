"""How `wgemma bench` measures: the median of several runs on a warmed-up GPU."""

from collections.abc import Callable
from statistics import median
from time import perf_counter as clock
from typing import TypeVar

from wgemma.gpu.device import Device

AWAKE = 1.5  # seconds of work until an idle GPU's clock has risen

T = TypeVar("T")


def warmed_up(device: Device, work: Callable[[], T], repeat: int) -> list[T]:
    """The results of `repeat` runs of `work`, after a warm-up: one run to compile kernels, and on a GPU enough to raise
    its clock."""
    end = clock() + (0 if device.info.kind == "CPU" else AWAKE)
    work()
    while clock() < end:
        work()
    return [work() for _ in range(repeat)]


def typical(device: Device, work: Callable[[], float], repeat: int) -> float:
    """The median result of `work`."""
    return median(warmed_up(device, work, repeat))
