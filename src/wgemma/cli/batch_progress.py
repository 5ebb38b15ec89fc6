"""How far a batch is: a bar on a terminal, a line per 10 % elsewhere, with rates and the time left.

The bar counts the bytes of the requests file, whose lines nobody has counted.
"""

import sys
import time
from typing import TYPE_CHECKING, Any

from wgemma.checks import counted
from wgemma.cli.output import human_seconds

if TYPE_CHECKING:
    from wgemma.scale.job import Tally

OFTEN = 0.1  # seconds between two updates of the bar


class BatchProgress:
    """Of a file of `size` bytes. `begin` is when the model is there: rates count from then on."""

    def __init__(self, size: int, *, quiet: bool) -> None:
        self._size = max(size, 1)
        self._tenth = 0
        self._begun = time.perf_counter()
        self._drawn = 0.0
        self._quiet = quiet
        self._bars: Any = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False))
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bars.add_task("", total=self._size)

    def __enter__(self) -> "BatchProgress":
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Takes the bar away."""
        if self._bars is not None:
            self._bars.stop()

    def say(self, what: str) -> None:
        """What is being done before the first answer."""
        if self._bars is not None:
            self._bars.update(self._task, description=what)

    def begin(self) -> None:
        self._begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._begun

    def tell(self, tally: "Tally") -> None:
        done, now = tally.size + tally.skipped_size, time.perf_counter()
        if self._bars is not None and now - self._drawn > OFTEN:
            self._drawn = now
            self._bars.update(self._task, completed=done, description=self._described(tally))
        elif self._bars is None and not self._quiet and (tenth := 10 * done // self._size) > self._tenth:
            self._tenth = tenth
            print(f"{tenth * 10} %: {self._described(tally)}", file=sys.stderr)

    def _described(self, tally: "Tally") -> str:
        left = (self._size - tally.size - tally.skipped_size) * self.seconds / max(tally.size, 1)
        failed = f", {tally.failed} failed" if tally.failed else ""
        told = f"{counted(tally.requests + tally.skipped, 'request')}{failed}, {rates(tally, self.seconds)}"
        return f"{told}, {human_seconds(left)} left"


def rates(tally: "Tally", seconds: float) -> str:
    """31.2 requests/s, 2018 tokens/s"""
    per_second = [count / max(seconds, 1e-9) for count in (tally.requests, tally.tokens)]
    shown = [f"{rate:.{0 if rate >= 100 else 1}f}" for rate in per_second]
    return f"{shown[0]} requests/s, {shown[1]} tokens/s"
