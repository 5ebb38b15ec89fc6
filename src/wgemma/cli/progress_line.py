"""One line on a terminal's standard error that says how far a prompt is, once a second has passed without output.

A thread draws it, so it moves while the GPU computes. It is erased before the answer is written.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wgemma.api import PromptProgress
from wgemma.cli.output import human_seconds

PATIENCE = 1.0  # seconds without output before the line appears
PAUSE = 0.1  # seconds between two looks
_lines: list["ProgressLine"] = []  # those that may be drawn
_bars = 0  # progress bars on the screen, where a line would be in their way


@contextmanager
def no_line() -> Iterator[None]:
    """Hides the line while something else uses the terminal."""
    global _bars
    _bars += 1
    for line in _lines:
        line.draw("")
    try:
        yield
    finally:
        _bars -= 1


class ProgressLine:
    """Inside this block the line may be drawn, if `shown` and on a terminal; `stopping` is whether Ctrl-C was
    pressed."""

    def __init__(self, stopping: Callable[[], bool], *, shown: bool = True) -> None:
        self._stopping = stopping
        self._thread = threading.Thread(target=self._watch, daemon=True) if shown and sys.stderr.isatty() else None
        self._over = threading.Event()
        self._drawing = threading.Lock()
        self._shown = ""  # what stands on the screen
        self._begun = self._heard = 0.0
        self._latest: PromptProgress | None = None

    def __enter__(self) -> "ProgressLine":
        if self._thread is not None:
            _lines.append(self)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self in _lines:
            _lines.remove(self)

    def hear(self, progress: PromptProgress) -> None:
        """Takes in how far the prompt is."""
        self._heard = time.perf_counter()
        self._begun = self._begun or self._heard
        self._latest = progress
        if progress.finished:
            self.end()

    def end(self) -> None:
        """Erases the line for good."""
        self._over.set()
        self.draw("")

    def _watch(self) -> None:
        since = time.perf_counter()
        while not self._over.wait(PAUSE):
            now = time.perf_counter()
            if self._stopping():
                self.draw("stopping; press Ctrl-C again to stop at once")
            elif now - since > PATIENCE:
                self.draw(describe(self._latest, self._heard - self._begun, now - self._heard))

    def draw(self, text: str) -> None:
        """Replaces what the line says, unless it must not be seen."""
        with self._drawing:
            if self._over.is_set() or _bars:
                text = ""
            text = text[: _columns() - 3]
            if text != self._shown:
                # The terminal may have added the ^C that was pressed.
                sys.stderr.write("\r" + text.ljust(len(self._shown) + 2) + ("" if text else "\r"))
                sys.stderr.flush()
                self._shown = text


def describe(progress: PromptProgress | None, seconds: float, since: float) -> str:
    """What the line says of a prompt that took `seconds` to get here, `since` seconds ago."""
    if progress is None:
        return "preparing the prompt"
    if progress.stage != "prompt":
        what = "image" if progress.stage == "image" else "sound"
        which = f"{what} {progress.number} of {progress.count}" if progress.count > 1 else f"the {what}"
        return f"encoding {which}: layer {progress.done + 1} of {progress.total}"
    told = f"reading the prompt: {progress.done} of {progress.total} tokens"
    if not progress.done or seconds <= 0:
        return told
    rate = progress.done / seconds
    left = max((progress.total - progress.done) / rate - since, 0.0)
    return f"{told}, {rate:.{0 if rate >= 10 else 1}f} tokens/s, {human_seconds(left)} left"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
