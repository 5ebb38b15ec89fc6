"""Composites an image on white and resizes it on the GPU, band by band.

The pixels of a large photograph are never all on the GPU at once: the result is computed in bands of rows, each from
just the image rows it needs.

The resize is torchvision's to the bit, for the unified model sees every rounding in a smooth picture: bicubic with
antialiasing, across and then down, with weights of 16 bits.
"""

import math
from array import array
from dataclasses import dataclass
from functools import lru_cache

from wgemma.errors import ModelError
from wgemma.files.images import Pixels
from wgemma.gpu.device import Buffer, Device
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.tower import submit

BAND = 32 << 20  # bytes of pixels at a time
MOST_BITS = 22  # of a weight's fraction
GRID_ROWS = 4096  # per dispatch; the kernel loops over the rest


@dataclass(frozen=True, slots=True)
class Taps:
    """What each of `size` elements is computed from: rows of kernels/resize.wgsl's table, as i32."""

    longest: int
    bits: int
    table: bytes


@lru_cache(8)
def taps(before: int, size: int) -> Taps:
    """The weights of a resize from `before` elements to `size`.

    Element o is at m = (o + ½) · before / size. Its weights c((k + ½ − m) / s), s = max(before / size, 1), add up to 1
    and are rounded to multiples of 2^−bits, with as many bits as leave the largest weight below 2¹⁵.
    """
    scale = before / size
    wide = max(scale, 1.0)
    rows: list[tuple[int, list[float]]] = []
    for o in range(size):
        centre = (o + 0.5) * scale
        first = max(math.floor(centre - 2 * wide + 0.5), 0)
        last = min(math.floor(centre + 2 * wide + 0.5), before)
        weights = [_cubic(abs(k + 0.5 - centre) / wide) for k in range(first, last)]
        total = sum(weights)
        rows.append((first, [weight / total for weight in weights]))
    most = max(max(weights) for _, weights in rows)
    bits = next((bits for bits in range(MOST_BITS) if math.floor(most * (2 << bits) + 0.5) >= 1 << 15), MOST_BITS)
    longest = max(len(weights) for _, weights in rows)
    table = array("i")
    for first, weights in rows:
        table.extend((first, len(weights)))
        table.extend(math.floor(abs(w) * (1 << bits) + 0.5) * (1 if w > 0 else -1) for w in weights)
        table.extend([0] * (longest - len(weights)))
    return Taps(longest, bits, table.tobytes())


def _cubic(d: float) -> float:
    """Keys' kernel with a = −½, for d ≥ 0."""
    if d < 1:
        return (1.5 * d - 2.5) * d * d + 1
    return ((-0.5 * d + 2.5) * d - 4) * d + 2 if d < 2 else 0.0


def resized(device: Device, pixels: Pixels, width: int, height: int) -> Buffer:
    """The image at width × height, a word per pixel: RGB and opaque alpha; the caller frees it."""
    with Ledger(device) as scratch:
        y = scratch.buffer(4 * width * height, "image")
        across, down = _Axis.on(scratch, pixels.width, width), _Axis.on(scratch, pixels.height, height)
        for begin, end in bands(pixels, width, height):
            _band(device, pixels, across, down, begin, end, y)
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


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of a resize, with its table on the GPU."""

    size: int
    taps: Taps
    table: Buffer

    @classmethod
    def on(cls, ledger: Ledger, before: int, size: int) -> "_Axis":
        found = taps(before, size)
        table = ledger.buffer(len(found.table), "taps of a resize")
        ledger.device.write(table, 0, found.table)
        return cls(size, found, table)

    @property
    def params(self) -> dict[str, int]:
        return {"size": self.size, "longest": self.taps.longest, "bits": self.taps.bits}


def _band(device: Device, pixels: Pixels, across: _Axis, down: _Axis, begin: int, end: int, y: Buffer) -> None:
    width = across.size
    first, last = needed(pixels.height, down.size, begin, end)
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
        grid = [-(-width // 64), min(rows, GRID_ROWS)]
        params = {**across.params, "first": 0, "there": pixels.width, "lines": rows}
        tape.run("resize", grid, {"x": x, "taps": across.table, "y": middle}, params)
        grid = [-(-width // 64), min(end - begin, GRID_ROWS)]
        params = {**down.params, "first": first, "there": rows, "lines": width, "begin": begin, "count": end - begin}
        tape.run("resize", grid, {"x": middle, "taps": down.table, "y": y}, params, {"VERTICAL": True})
        submit(tape)
