"""Sorted words as a tree: a node is a range of them and how many bytes they share."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence


def narrowed(texts: Sequence[bytes], low: int, high: int, depth: int, symbol: int) -> tuple[int, int]:
    """Those of `texts[low:high]` that go on with `symbol`; they are sorted and share their first `depth` bytes."""
    if symbol > 255:
        return 0, 0
    prefix = texts[low][:depth]
    start = bisect_left(texts, prefix + bytes((symbol,)), low, high)
    return start, high if symbol == 255 else bisect_left(texts, prefix + bytes((symbol + 1,)), start, high)


def branches(texts: Sequence[bytes], low: int, high: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """The bytes that `texts[low:high]` go on with after `depth` bytes, each with its range."""
    if low < high and len(texts[low]) == depth:
        low += 1
    while low < high:
        symbol = texts[low][depth]
        _, end = narrowed(texts, low, high, depth, symbol)
        yield symbol, low, end
        low = end
