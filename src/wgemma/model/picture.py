"""An image on its way to the GPU: laid on white and brought to a size there, band by band.

The pixels of a large photograph are never on the GPU all at once: rows of the result are made in bands, from the rows
of the image that they need.
"""

import math

from wgemma.errors import ModelError
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.tape import Tape
from wgemma.model.tower import Scratch, submit

BAND = 32 << 20  # bytes of pixels at a time
GRID_ROWS = 4096  # of a dispatch; the kernel goes on in steps


def resized(device: Device, pixels: Pixels, width: int, height: int) -> Buffer:
    """The image at width × height, a word per pixel: RGB and a full alpha; the caller frees it."""
    with Scratch(device, "image") as scratch:
        y = scratch.buffer(4 * width * height)
        for begin, end in bands(pixels, width, height):
            _band(device, pixels, (width, height), begin, end, y)
        return scratch.kept(y)


def bands(pixels: Pixels, width: int, height: int) -> list[tuple[int, int]]:
    """The rows of the result as (begin, end), so many at a time that the pixels they need are a moderate amount."""
    scale = pixels.height / height
    room = BAND // (4 * max(pixels.width, width))  # rows of pixels
    step = max(1, math.floor((room - 4 * max(scale, 1.0) - 4) / scale))
    return [(begin, min(begin + step, height)) for begin in range(0, height, step)]


def needed(before: int, size: int, begin: int, end: int) -> tuple[int, int]:
    """The elements of an axis of `before` that make elements begin … end − 1 of `size`, and perhaps one more."""
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
            f"an image of {pixels.width} × {pixels.height} is too long for this GPU. Cut it, or make it smaller first."
        )
    with Scratch(device, "rows of an image") as scratch:
        x, middle = scratch.buffer(rows * row_bytes), scratch.buffer(rows * 4 * width)
        device.write(x, 0, pixels.rows(first, last))
        tape = Tape(device, "resize")
        across = {"before": pixels.width, "size": width, "first": 0, "there": pixels.width, "lines": rows}
        tape.run("resize", [-(-width // 64), min(rows, GRID_ROWS)], {"x": x, "y": middle}, across)
        down = {"before": pixels.height, "size": height, "first": first, "there": rows, "lines": width}
        down |= {"begin": begin, "count": end - begin}
        grid = [-(-width // 64), min(end - begin, GRID_ROWS)]
        tape.run("resize", grid, {"x": middle, "y": y}, down, {"VERTICAL": True})
        submit(tape)
