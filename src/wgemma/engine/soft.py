"""Soft rows in a sequence of ids: ids from SOFT on, consecutive for the rows of one image or sound.

One id is skipped between media, so a run of consecutive ids always belongs to one medium.
"""

from collections.abc import Iterable, Iterator, Sequence

from wgemma.model.passes import SOFT


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
    """The last position up to `position` that is not inside an image."""
    return min((start for start, end in images if start < position < end), default=position)


def common_start(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The length of two sequences' common prefix."""
    for i, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return i
    return min(len(ours), len(theirs))
