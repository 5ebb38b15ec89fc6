"""Composites an image on white and resizes it on the GPU, band by band.

The pixels of a large photograph are never all on the GPU at once: the result is computed in bands of rows, each from
just the image rows it needs.
"""

import math

from wgemma.errors import ModelError
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.tower import submit

BAND = 32 << 20  # bytes of pixels at a time
GRID_ROWS = 4096  # per dispatch; the kernel loops over the rest


def resized(device: Device, pixels: Pixels, width: int, height: int) -> Buffer:
    """The image at width × height, a word per pixel: RGB and opaque alpha; the caller frees it."""
    with Ledger(device) as scratch:
        y = scratch.buffer(4 * width * height, "image")
        for begin, end in bands(pixels, width, height):
            _band(device, pixels, (width, height), begin, end, y)
        return scratch.keep(y)


def bands(pixels: Pixels, width: int, height: int) -> list[tuple[int, int]]:
    """The result's rows as (begin, end) bands, each small enough that its source pixels fit into BAND."""
    scale = pixels.height / height
    room = BAND // (4 * max(pixels.width, width))  # rows of pixels
    step = max(1, math.floor((room - 4 * max(scale, 1.0) - 4) / scale))
    return [(begin, min(begin + step, height)) for begin in range(0, height, step)]


def needed(before: int, size: int, begin: int, end: int) -> tuple[int, int]:
    """The elements, out of `before`, that elements begin … end − 1 of `size` depend on, and perhaps one more."""
    scale = before / size
    wide = 2 * max(scale, 1.0)
    first = math.floor((begin + 0.5) * scale - wide) - 1
    last = math.ceil((end - 0.5) * scale + wide) + 1
    return max(first, 0), min(last, before)


def _band(device: Device, pixels: Pixels, size: tuple[int, int], begin: int, end: int, y: Buffer) -> None:
    width, height = size
    first, last = needed(pixels.height, height, begin, end)
    rows, row_bytes = last - first, 4 * pixels.width
    if rows * max(row_bytes, 4 * width) > device.limits.binding:
        raise ModelError(
            f"an image of {pixels.width} × {pixels.height} is too long for this GPU. Crop it or shrink it first."
        )
    with Ledger(device) as scratch:
        sizes = (rows * row_bytes, rows * 4 * width)
        x, middle = scratch.buffers((size, "rows of an image") for size in sizes)
        device.write(x, 0, pixels.rows(first, last))
        tape = Tape(device, "resize")
        across = {"before": pixels.width, "size": width, "first": 0, "there": pixels.width, "lines": rows}
        tape.run("resize", [-(-width // 64), min(rows, GRID_ROWS)], {"x": x, "y": middle}, across)
        down = {"before": pixels.height, "size": height, "first": first, "there": rows, "lines": width}
        down |= {"begin": begin, "count": end - begin}
        grid = [-(-width // 64), min(end - begin, GRID_ROWS)]
        tape.run("resize", grid, {"x": middle, "y": y}, down, {"VERTICAL": True})
        submit(tape)
