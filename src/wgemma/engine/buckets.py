"""Splits a long prompt into passes. A pass is recorded for one of a few numbers of rows, its bucket, and padded to it.
An image whose rows see each other is never split. Pure functions: no GPU, no model.
"""

from collections.abc import Sequence

from wgemma.engine.options import IMAGE_ROWS
from wgemma.engine.soft import outside
from wgemma.errors import SettingsError

FEW_ROWS = (1, 2, 4, 8)
FEW_PASSES = 3  # three 8-row passes cost no more than one 32-row tile, on an H200 and on llvmpipe alike
TILES = (32, 128, 256, 512)


def share(waiting: int, images: Sequence[tuple[int, int]], chunk: int, most: int) -> tuple[int, int]:
    """How many of the waiting rows the next pass takes, and its bucket: up to `chunk` rows, or `most` for one image.

    `images` are (start, end) among the waiting rows.
    """
    size = bucket(waiting, chunk)
    count = outside(min(size, waiting), images)
    if 0 < count < min(size, waiting):  # an image follows: perhaps a smaller bucket suffices
        smaller = bucket(count, chunk)
        fewer = outside(min(smaller, count), images)
        return (fewer, smaller) if fewer else (count, size)
    if count == 0:  # an image larger than the bucket
        size = _holding(images[0][1], chunk, most)
        count = outside(min(size, waiting), images)
    return count, size


def bucket(count: int, chunk: int) -> int:
    """Rows per pass for `count` waiting ones: a few exactly or in several small passes; many in tiles at least half
    full."""
    few = [size for size in FEW_ROWS if size <= chunk]
    if count <= FEW_PASSES * few[-1]:
        return next((size for size in few if count <= size), few[-1])
    fitting = [size for size in _tiles(chunk) if count > size // 2]
    return fitting[-1] if fitting else _tiles(chunk)[0]


def _holding(count: int, chunk: int, most: int) -> int:
    """The smallest bucket that holds a whole image."""
    for size in sorted((*TILES, chunk, *IMAGE_ROWS)):
        if count <= size <= most:
            return size
    raise SettingsError(f"an image of {count} tokens does not fit into a pass of {most} rows. Lower its budget.")


def _tiles(chunk: int) -> list[int]:
    """The buckets for many rows, up to `chunk`."""
    return [size for size in TILES if size <= chunk] or [chunk]
