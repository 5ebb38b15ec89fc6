"""Soft rows in a sequence of ids: numbers from SOFT on, in a row for the rows of one image or sound.

Between the numbers of two media one is never given out, so a run of numbers is always of one medium.
"""

from collections.abc import Iterable, Iterator, Sequence

from wgemma.model.decoder import SOFT


def runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of every run of soft rows."""
    start = None
    for i, number in enumerate(ids):
        if start is not None and number != ids[i - 1] + 1:
            yield start, i
            start = None
        if start is None and number >= SOFT:
            start = i
    if start is not None:
        yield start, len(ids)


def outside(position: int, images: Iterable[tuple[int, int]]) -> int:
    """The last position up to `position` that lies inside no image."""
    return min((start for start, end in images if start < position < end), default=position)


def common_start(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    for i, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return i
    return min(len(ours), len(theirs))
