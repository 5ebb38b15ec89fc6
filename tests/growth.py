"""How a cost grows, on a machine that has other things to do."""

import gc
import time
from collections.abc import Callable


def growth(small: Callable[[], object], large: Callable[[], object], enough: float, tries: int = 8) -> float:
    """How many times as long `large` takes as `small`, in processor time, the best of either over a few turns.

    They take turns, so that a slow moment meets both; and further turns are only taken while the figure is above
    `enough`: what grows too fast is above it every time.
    """
    best = [float("inf"), float("inf")]
    for _ in range(tries):
        for i, work in enumerate((small, large)):
            best[i] = min(best[i], seconds(work))
        if best[1] < enough * best[0]:
            break
    return best[1] / best[0]


def seconds(work: Callable[[], object]) -> float:
    """Processor time, without what the garbage collector makes of the objects of other tests."""
    gc.disable()
    try:
        begin = time.process_time()
        work()
        return time.process_time() - begin
    finally:
        gc.enable()
