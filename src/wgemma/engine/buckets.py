"""How a long prompt is cut into passes. A pass is recorded for one of a few numbers of rows, its bucket; rows that are
left over in it are computed for nothing. An image whose rows see each other is never cut. Pure: no GPU, no model.
"""

from collections.abc import Sequence

from wgemma.engine.engine import IMAGE_ROWS
from wgemma.engine.soft import outside
from wgemma.errors import SettingsError

FEW_ROWS = (1, 2, 4, 8)
FEW_PASSES = 3  # of the most of these take no longer than one of the lowest tile, on an H200 and on llvmpipe alike
TILES = (32, 128, 512)


def share(waiting: int, images: Sequence[tuple[int, int]], chunk: int, most: int) -> tuple[int, int]:
    """How many of the waiting rows the next pass takes, and its bucket: up to `chunk` rows, `most` for one image.

    `images` are (start, end) among the waiting rows.
    """
    size = bucket(waiting, chunk)
    count = outside(min(size, waiting), images)
    if 0 < count < min(size, waiting):  # an image follows: perhaps a smaller bucket will do
        smaller = bucket(count, chunk)
        fewer = outside(min(smaller, count), images)
        return (fewer, smaller) if fewer else (count, size)
    if count == 0:  # an image larger than the bucket
        size = _holding(images[0][1], chunk, most)
        count = outside(min(size, waiting), images)
    return count, size


def bucket(count: int, chunk: int) -> int:
    """The rows to compute at once for `count` waiting ones: few exactly, or few at a time; many in tiles that are at
    least half full."""
    few = [size for size in FEW_ROWS if size <= chunk]
    if count <= FEW_PASSES * few[-1]:
        return next((size for size in few if count <= size), few[-1])
    tiles = _tiles(chunk)
    fitting = [size for size in tiles if count > size // 2]
    return fitting[-1] if fitting else tiles[0]


def _holding(count: int, chunk: int, most: int) -> int:
    """The smallest bucket for all of an image's rows."""
    for size in (*_tiles(chunk), chunk, *IMAGE_ROWS):
        if count <= size <= most:
            return size
    raise SettingsError(f"an image of {count} tokens does not fit: a pass takes {most} here. Lower its budget.")


def _tiles(chunk: int) -> list[int]:
    return [size for size in TILES if size <= chunk] or [chunk]
