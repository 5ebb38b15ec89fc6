"""Runs a reader over many inputs and reports whatever is neither read nor refused, too slow, or too large."""

import faulthandler
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import FrameType
from typing import Any

from wgemma.errors import Error

MOST_SECONDS = 5.0
MOST_MEMORY = 1 << 30
LONGEST_SENTENCE = 4000


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads outside bytes. `make` makes an input, `examine` reads it and says how far it came."""

    name: str
    share: int  # of every thousand inputs
    make: Callable[[Random], Any]
    examine: Callable[[Any], str]


@dataclass(slots=True)
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    escapes: list[str] = field(default_factory=list)
    slowest: float = 0.0  # seconds of one input
    grown: int = 0  # bytes by which the process's peak grew

    def add(self, other: "Report") -> None:
        self.outcomes += other.outcomes
        self.escapes += other.escapes
        self.slowest, self.grown = max(self.slowest, other.slowest), max(self.grown, other.grown)


class TooSlowError(BaseException):
    """No handler for `Exception` may swallow this."""


def attack(reader: Reader, seed: int, numbers: range) -> Report:
    """Inputs of these numbers; the same seed and number make the same input again."""
    report, before = Report(), _peak()
    for number in numbers:
        case = reader.make(Random(f"{reader.name}/{seed}/{number}"))
        begin, label = time.perf_counter(), f"{reader.name} {seed}/{number}"
        try:
            with _deadline(label):
                report.outcomes[_outcome(reader, case)] += 1
        except TooSlowError:
            report.escapes.append(f"{label}: more than {MOST_SECONDS:g} s")
        except Exception as escape:
            report.escapes.append(f"{label}: {type(escape).__name__}: {str(escape)[:200]}")
        report.slowest = max(report.slowest, time.perf_counter() - begin)
        grown = _peak() - before - report.grown
        if grown > MOST_MEMORY:
            report.escapes.append(f"{label}: {grown / 1e6:.0f} MB")
        report.grown += max(grown, 0)
    return report


def _outcome(reader: Reader, case: Any) -> str:
    try:
        return reader.examine(case)
    except Error as refusal:
        sentence = str(refusal)
        if not 0 < len(sentence) <= LONGEST_SENTENCE:
            raise AssertionError(f"a sentence of {len(sentence)} characters: {sentence[:80]}") from None
        sentence.encode()  # a terminal must be able to show it
        return "refused"


@contextmanager
def _deadline(label: str) -> Iterator[None]:
    """Interrupts Python code that takes too long; code that cannot be interrupted ends the process with a traceback."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError(label)

    faulthandler.dump_traceback_later(10 * MOST_SECONDS, exit=True)
    earlier = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        faulthandler.cancel_dump_traceback_later()


def _peak() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
