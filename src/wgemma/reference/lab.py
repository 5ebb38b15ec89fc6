"""A test bench for one kernel: inputs followed by NaN, outputs that show what was written, random weights.

Every output starts as poison, with more poison after it. On reading back, words that still hold it are `UNTOUCHED`;
expected arrays say `UNTOUCHED` where nothing may be written. So one comparison checks the values, that nothing is
missing, and that nothing was written out of bounds.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wgemma.files.gguf import Tensor
from wgemma.files.quants import BY_NAME
from wgemma.gpu.device import Binding, Buffer, Device, Span
from wgemma.gpu.shaders import Values
from wgemma.gpu.tape import Tape
from wgemma.model.planes import PLANES
from wgemma.model.rows import Row
from wgemma.model.weights import Matrix, MatrixPart, RowOrder, repack, room_for
from wgemma.reference.dequantize import dequantize
from wgemma.reference.quantize import quantize
from wgemma.reference.twins import Array
from wgemma.sync import run

POISON = b"\x7a"
UNTOUCHED = float(np.frombuffer(4 * POISON, dtype="<f4")[0])  # about 3e35, which no kernel computes
GUARD = 64  # words after every buffer

EPS = 1e-6
F32 = 1e-5  # how much f32 sums may differ between summation orders
EXACT = 0.0  # dequantising rounds at most once, as the twin does
THREADS = 256  # per workgroup, if the kernel lets the decoder choose

# Offsets of a block's f16 scales and their approximate size, so that weights are well below one.
SCALES: dict[str, tuple[tuple[int, ...], float]] = {
    "Q4_0": ((0,), 0.02),
    "Q4_1": ((0, 2), 0.02),
    "Q5_0": ((0,), 0.01),
    "Q5_1": ((0, 2), 0.01),
    "Q8_0": ((0,), 0.001),
    "Q2_K": ((80, 82), 3e-3),
    "Q3_K": ((108,), 1e-3),
    "Q4_K": ((0, 2), 3e-4),
    "Q5_K": ((0, 2), 2e-4),
    "Q6_K": ((208,), 5e-5),
    "IQ3_XXS": ((0,), 3e-4),
    "IQ3_S": ((0,), 3e-4),
    "IQ4_NL": ((0,), 1e-3),
    "IQ4_XS": ((0,), 5e-5),
    "MXFP4": ((), 0.0),
}


Options = TypeVar("Options")


class Outcome(NamedTuple):
    """The actual and expected values of one or more outputs, and the tolerance."""

    got: tuple[Array, ...]
    expected: tuple[Array, ...]
    tolerance: float

    def error(self) -> float:
        return max(relative_error(g, e) for g, e in zip(self.got, self.expected, strict=True))


def relative_error(got: Array, expected: Array) -> float:
    """rms(got − expected) / rms(expected) over what should be written; infinite if anything else was."""
    still = expected == UNTOUCHED
    if got.shape != expected.shape or (got[still] != UNTOUCHED).any():
        return float("inf")
    g, e = got[~still], expected[~still]
    if (np.isnan(g) != np.isnan(e)).any():
        return float("inf")
    numbers = ~np.isnan(e)
    if not numbers.any():
        return 0.0
    distance, size = (float(np.sqrt(np.mean(np.square(x[numbers])))) for x in (g - e, e))
    return distance / (size or 1.0)


def framed(expected: Array) -> Array:
    """An output as it should be read back, including the guard after it."""
    return np.concatenate([expected.astype(np.float64).ravel(), np.full(GUARD, UNTOUCHED)])


def untouched(*shape: int) -> Array:
    return np.full(shape, UNTOUCHED)


@dataclass(frozen=True, slots=True)
class Case:
    """`body` runs the kernel in a lab; its inputs are the same on every device."""

    name: str
    kernel: str
    body: "Callable[[Lab], Outcome]"
    quick: bool

    def run(self, device: Device) -> Outcome:
        with Lab(device, zlib.crc32(self.name.encode())) as lab, np.errstate(invalid="ignore"):
            return self.body(lab)


def case(body: Callable[..., Outcome], quick: bool, kernel: str = "", **options: Any) -> Case:
    """A case named "tile kind=Q4_0 rows=9 …"; the kernel defaults to the body's name."""
    kernel = kernel or body.__name__.removeprefix("_")
    name = " ".join([kernel, *(f"{key}={value}" for key, value in options.items())])
    return Case(name, kernel, partial(body, **options), quick)


def widths(kind: str) -> tuple[int, int, int]:
    """A narrow, a medium and a wide K that the type allows; the wide one takes more than one slice in matvec."""
    return (256, 768, 2304) if PLANES[kind].span == 256 else (32, 288, 2112)


def random_blocks(rng: np.random.Generator, kind: str, count: int) -> NDArray[np.uint8]:
    """Blocks of a quantised type, [count, nbytes]: any codes, and scales of a sensible size."""
    blocks = rng.integers(0, 256, (count, BY_NAME[kind].nbytes), dtype=np.uint8)
    offsets, unit = SCALES[kind]
    for at in offsets:
        d = unit * rng.uniform(0.5, 1.5, count) * rng.choice([-1, 1], count)
        blocks[:, at : at + 2] = d.astype("<f2")[:, None].view(np.uint8)
    if kind == "MXFP4":  # exponents of scales around 0.01
        blocks[:, 0] = rng.integers(118, 125, count)
    return blocks


class Lab:
    """One device and one random generator; all buffers are freed at the end."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        self.rng = np.random.default_rng(seed)
        self._buffers: list[Buffer] = []

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for buffer in self._buffers:
            self.device.free(buffer)

    # -- buffers

    def put(self, values: Array, kind: str = "<f4") -> Buffer:
        """An input, followed by all-ones words, which are NaN to a kernel that reads too far."""
        data = np.ascontiguousarray(values, dtype=kind).tobytes()
        return self._filled(data + b"\xff" * (-len(data) % 4 + 4 * GUARD))

    def put_rows(self, rows: Sequence[Row]) -> Buffer:
        return self.put(np.array(rows), "<u4")

    def out(self, words: int) -> Buffer:
        """A poisoned output of `words` words."""
        return self._filled(POISON * (4 * (words + GUARD)))

    def held(self, values: Array) -> Buffer:
        """An output with initial values that the kernel adds to or changes, followed by poison."""
        return self._filled(np.ascontiguousarray(values, dtype="<f4").tobytes() + POISON * (4 * GUARD))

    def read(self, buffer: Buffer, kind: str = "<f4") -> Array:
        """An output and the guard after it, as float64."""
        values = np.frombuffer(run(self.device.read(buffer)), dtype=kind)
        poison = np.frombuffer(POISON * values.itemsize, dtype=kind)
        read = np.where(values == poison, UNTOUCHED, values.astype(np.float64))
        return read[: read.size - GUARD * (4 // values.itemsize - 1)]

    def run(
        self,
        kernel: str,
        grid: Sequence[int],
        bindings: Mapping[str, Binding],
        params: Values | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        tape = Tape(self.device, kernel)
        tape.run(kernel, grid, bindings, params, constants)
        tape.program().replay()
        tape.free()

    def _filled(self, data: bytes) -> Buffer:
        buffer = self.device.buffer(len(data), "sweep")
        self._buffers.append(buffer)
        self.device.write(buffer, 0, data)
        return buffer

    # -- numbers

    def normal(self, *shape: int, scale: float = 1.0) -> Array:
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def norms(self, *shape: int) -> Array:
        """Norm weights: around one, like trained ones."""
        return 1 + self.normal(*shape, scale=0.2)

    def scales(self, rows: int, n: int, own: bool) -> tuple[Array, Buffer, int]:
        """n scales for all rows, or for every row its `own`; on the device, and the step between rows. NaN fills the
        gaps, and the first row's own are zeros."""
        if not own:
            scales = self.normal(n)
            return scales, self.put(scales), 0
        spread = np.full((rows, n + 3), np.nan, np.float32)
        spread[:, :n] = self.normal(rows, n)
        spread[0, :n] = 0
        return spread[:, :n], self.put(spread), n + 3

    def activations(self, *shape: int, extreme: str = "") -> Array:
        """Rows of activations; `extreme` is zeros, huge, nan (one, in the second row if there is one), or nothing."""
        x = self.normal(*shape)
        if extreme == "zeros":
            x[:] = 0
        elif extreme == "huge":
            x = np.copysign(np.float32(1e4), x)
        elif extreme == "nan":
            x[min(1, len(x) - 1)].flat[x[0].size // 2] = np.nan
        return x

    # -- weights

    def raw(self, kind: str, rows: int, columns: int) -> NDArray[np.uint8]:
        """The bytes of random rows, [rows, row bytes]: any codes, with some scales subnormal or zero."""
        if kind not in SCALES:
            values = self.normal(rows, columns, scale=0.05)
            values[:, ::7] *= np.float32(1e-4)  # subnormal as f16
            return quantize(values, kind)
        blocks = random_blocks(self.rng, kind, rows * columns // BY_NAME[kind].elements)
        for at in SCALES[kind][0]:
            odd = 2.0**-24 * self.rng.integers(0, 1024, blocks[2::5].shape[0])
            blocks[2::5, at : at + 2] = odd.astype("<f2")[:, None].view(np.uint8)
        return blocks.reshape(rows, -1)

    def weights(self, kind: str, rows: int, columns: int, most: int = 0) -> tuple[Matrix, Array]:
        """A random matrix on the device, split into parts of `most` rows, and its values."""
        raw = self.raw(kind, rows, columns)
        return self.matrix(kind, columns, [(raw, RowOrder())], most), dequantize(raw, kind, (rows, columns))

    def matrix(
        self,
        kind: str,
        columns: int,
        sources: Sequence[tuple[NDArray[np.uint8], RowOrder]],
        most: int = 0,
        piece: int = 0,
    ) -> Matrix:
        """Raw rows, repacked `piece` at a time into parts of `most` rows."""
        rows = sum(len(raw) for raw, _ in sources)
        most = most or rows
        parts = [self._part(kind, columns, first, min(most, rows - first)) for first in range(0, rows, most)]
        for raw, order in sources:
            tensor = Tensor("sweep", (columns, len(raw)), kind, 0, raw.nbytes)
            step = piece or len(raw)
            for start in range(0, len(raw), step):
                staged = raw[start : start + step]
                tape = Tape(self.device, "repack")
                staging = self.put(staged, "u1")
                for part in parts:
                    repack(tape, tensor, order, part, staging, start, len(staged))
                tape.program().replay()
                tape.free()
        return Matrix(kind, rows, columns, tuple(parts))

    def _part(self, kind: str, columns: int, first: int, rows: int) -> MatrixPart:
        """Planes with poison in and around them; scales that are set bit by bit start at zero, as in a new buffer."""
        planes, alignment = PLANES[kind], self.device.limits.offset_alignment
        room = room_for(rows)
        code_bytes, scale_bytes = planes.code_bytes(room, columns), planes.scale_bytes(room, columns)
        edge = -(-code_bytes // alignment) * alignment
        scales = (b"\0" if planes.halves else POISON) * scale_bytes
        buffer = self._filled(POISON * edge + scales + POISON * (4 * GUARD))
        span = Span(buffer, edge, scale_bytes) if scale_bytes else None
        return MatrixPart(first, rows, buffer, Span(buffer, 0, code_bytes), span)

    def margins(self, part: MatrixPart) -> Array:
        """The words between and after the planes of a part, which should all be untouched."""
        words = np.frombuffer(run(self.device.read(part.buffer)), dtype="<f4").astype(np.float64)
        edge = part.scales.offset if part.scales else part.codes.size
        end = edge + (part.scales.size if part.scales else 0)
        return np.concatenate([words[part.codes.size // 4 : edge // 4], words[end // 4 :]])

    def values(self, matrix: Matrix) -> Array:
        """A matrix's values as embed.wgsl reads them: [rows, columns]."""
        rows = self.put_rows([Row(1, 0, token) for token in range(matrix.rows)])
        y = self.out(matrix.rows * matrix.columns)
        for part in matrix.parts:
            bindings = {**part.bindings(), "rows": rows, "y": y}
            params = {"blocks": matrix.blocks, "first": part.first, "count": part.rows, "scale": 1.0}
            params |= {"by_index": False, "pads": False}
            grid = [-(-matrix.blocks // 64), matrix.rows]
            self.run("embed", grid, bindings, params, {"TYPE": matrix.planes.reader})
        return self.read(y)


def takes(options: type[Options]) -> Callable[[Callable[[Lab, Options], Outcome]], Callable[..., Outcome]]:
    """Lets a case pass options by name to a body that takes them as one value."""

    def decorated(body: Callable[[Lab, Options], Outcome]) -> Callable[..., Outcome]:
        @wraps(body)
        def given(lab: Lab, **named: Any) -> Outcome:
            return body(lab, options(**named))

        return given

    return decorated


def clear_of_ties(x: Array) -> Array:
    """Moves numbers away from the midpoint between two bytes, where the GPU's division would decide the rounding."""
    blocks = x.reshape(-1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / 127
    near_tie = np.abs(blocks / step % 1 - 0.5) < 1e-3
    return np.where(near_tie, blocks - 0.01 * step, blocks).reshape(x.shape)
