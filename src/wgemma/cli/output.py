"""How the verbs print: aligned columns, human-readable sizes, JSON, progress bars."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, Protocol

# The first words of errors that are no names.
ORDINARY = {
    "a", "an", "at", "cannot", "embeddings", "heads", "layer", "layers", "line", "loading", "more", "no", "nothing",
    "one", "only", "pictures", "pieces", "position", "standard", "the", "there", "this", "token", "training", "videos",
    "what", "you",
}  # fmt: skip
# Said where a software adapter (llvmpipe, SwiftShader) is used.
ON_THE_PROCESSOR = (
    "No GPU is in use: the processor does the work. If the machine has a GPU, install its driver (on Linux its "
    "Vulkan driver): that is tens to hundreds of times faster."
)


def clean(text: str) -> str:
    """Text made safe for a terminal: control characters, and with them escape sequences, become visible."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def sentence(text: str) -> str:
    """An error's text with a capital letter, unless it begins with a name: of a file, a model or a setting."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0] in ORDINARY else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns two spaces apart, with a bold header on a terminal."""
    cells = [[clean(cell).replace("\n", "⏎") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(bold + _columns(header, widths) + plain)
    for row in cells:
        print(_columns(row, widths))


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def human_count(count: int) -> str:
    """5 123 178 051 → '5.1B'."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= limit:
            return f"{count / limit:.1f}{unit}" if count < 100 * limit else f"{count / limit:.0f}{unit}"
    return str(count)


def human_seconds(seconds: float) -> str:
    """4000 → '1:06:40', 65 → '1:05'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def as_json(value: Any) -> None:
    """Prints one JSON document in ASCII, safe for every terminal and parser."""
    print(json.dumps(_plain(value), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    """The value in JSON types; NaN and infinities become null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if isfinite(value) else None
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case Sequence():
            return [_plain(item) for item in value]
        case _:
            return str(value)


class Bar(Protocol):
    """Called with the amount of work done since the last call."""

    def __call__(self, amount: int) -> None: ...


@contextmanager
def progress(label: str, total: int | None) -> Iterator[Bar]:
    """A bar on a terminal, a line per 10 % elsewhere (none if the total is not known); on standard error, to keep
    standard output clean."""
    if sys.stderr.isatty():
        with _rich_progress(label, total) as bar:
            yield bar
    else:
        yield _PlainProgress(label, total)


@contextmanager
def _rich_progress(label: str, total: int | None) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda amount: bars.advance(task, amount)


class _PlainProgress:
    def __init__(self, label: str, total: int | None) -> None:
        self.label, self.total, self.done, self.tenth = label, total, 0, 0

    def __call__(self, amount: int) -> None:
        self.done += amount
        tenth = 0 if self.total is None else 10 * self.done // max(self.total, 1)
        if tenth > self.tenth:
            self.tenth = tenth
            print(f"{self.label}: {tenth * 10} %", file=sys.stderr)
