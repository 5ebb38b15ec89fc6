"""Streams tensors from the file to the GPU in pieces, where a kernel repacks them.

A `Matrix` is one or more tensors of one type, with rows in the order the matmuls need, split by rows into parts that
fit a binding. The Python heap never holds more than one piece.
"""

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.gpu.device import Buffer, Span
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.planes import PLANES, Planes

PIECE = 32 << 20  # bytes uploaded at once
ON_THE_WAY = 4 * PIECE  # the most bytes in flight, held in the driver's memory
ROOM = 64  # parts are padded to a multiple of this many rows: matvec.wgsl reads some before it knows how many
_FAR = 1 << 30  # no grouping


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Where row i of a tensor goes: add + (i / group) · group_stride + (i % group % half) · step + i % group / half."""

    add: int = 0
    group: int = _FAR
    half: int = _FAR
    group_stride: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """Rows [first, first + rows) of a matrix, in planes."""

    first: int
    rows: int
    buffer: Buffer
    codes: Span
    scales: Span | None

    def bindings(self) -> dict[str, Buffer | Span]:
        return {"codes": self.codes, "scales": self.scales or self.codes}

    def experts(self, each: int) -> dict[str, int]:
        """Which experts these rows are, at `each` rows per expert, as parameters for kernels."""
        return {"first_expert": self.first // each, "experts": self.rows // each}


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` × `columns` weights of one type; the last block of 32 of a row is padded with zeros."""

    kind: str
    rows: int
    columns: int
    parts: tuple[MatrixPart, ...]

    @property
    def planes(self) -> Planes:
        return PLANES[self.kind]

    @property
    def blocks(self) -> int:
        return -(-self.columns // 32)


class Uploader:
    """Uploads the tensors of one file to one device. `progress` gets the byte count of every piece. With a planning
    ledger nothing is read or uploaded: vectors are zeros and matrices have no content."""

    def __init__(self, ledger: Ledger, gguf: Gguf, progress: Callable[[int], None] = lambda nbytes: None) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.gguf = gguf
        self.progress = progress
        self._staging: Buffer | None = None
        self._sent = 0  # bytes since the last flush
        self._small: dict[str, bytes] = {}

    def close(self) -> None:
        """Frees the staging memory; the matrices stay."""
        self.expect(())
        if self._staging is not None:
            self.device.free(self._staging)
            self._staging = None

    def expect(self, tensors: Iterable[Tensor]) -> None:
        """Announces what will be loaded, in roughly this order, so that a slow source can prefetch it."""
        if not self.ledger.plans:
            self.gguf.source.expect((start, size) for tensor in tensors for start, size, _ in _pieces(tensor))

    async def small(self, tensor: Tensor) -> bytes:
        """The bytes of a tensor that is read repeatedly, cached."""
        if tensor.name not in self._small:
            self._small[tensor.name] = bytes(await self.gguf.source.read(tensor.offset, tensor.nbytes))
        return self._small[tensor.name]

    async def vector(self, tensor: Tensor) -> "array[float]":
        """A small tensor as floats; raises `ModelError` for NaN or Inf, which would spoil every token."""
        return array("f", bytes(4 * tensor.elements)) if self.ledger.plans else await self.numbers(tensor)

    async def numbers(self, tensor: Tensor) -> "array[float]":
        """`vector`, but read even when planning, because sizes depend on it."""
        raw = await self.gguf.source.read(tensor.offset, tensor.nbytes)
        self.progress(tensor.nbytes)
        if tensor.type == "F32":
            values = array("f", bytes(raw))
        elif tensor.type == "F16":
            values = array("f", struct.unpack(f"<{tensor.elements}e", raw))
        else:
            wide = b"".join(b"\0\0" + bytes(raw[i : i + 2]) for i in range(0, len(raw), 2))
            values = array("f", wide)
        if not math.isfinite(sum(values)) and not all(map(math.isfinite, values)):
            raise ModelError(f"{tensor.name} contains NaN or Inf; the file is damaged.")
        return values

    def upload(self, data: bytes | memoryview, label: str) -> Buffer:
        return self.upload_made(len(data), label, lambda: data)

    def upload_made(self, size: int, label: str, make: Callable[[], bytes | memoryview]) -> Buffer:
        """`upload` of data that is slow to compute, which planning skips."""
        buffer = self.ledger.buffer(size, label)
        if not self.ledger.plans:
            self.device.write(buffer, 0, make())
        return buffer

    async def matrix(
        self, sources: Sequence[tuple[Tensor, RowOrder]], unit: int = 1, *, ragged: bool = False
    ) -> Matrix:
        """One matrix from tensors of one type and width; a part never splits `unit` rows that belong together. Kernels
        that take a `ragged` matrix must expect rows that end within a block of 32."""
        first = sources[0][0]
        kind, columns = first.type, first.shape[0]
        step = 4 if ragged else 32
        if columns % step:
            raise ModelError(f"{first.name} has rows of {columns} values; wgemma needs a multiple of {step}.")
        rows = sum(tensor.elements // columns for tensor, _ in sources)
        parts = tuple(self._parts(PLANES[kind], rows, -(-columns // 32) * 32, unit, first.name))
        if not self.ledger.plans:
            await self.device.confirm()
            for tensor, order in sources:
                await self._stream(tensor, order, parts)
        return Matrix(kind, rows, columns, parts)

    def _parts(self, planes: Planes, rows: int, columns: int, unit: int, label: str) -> list[MatrixPart]:
        limits = self.device.limits
        most = min(limits.binding, limits.buffer - limits.offset_alignment)
        units = most // planes.nbytes(ROOM, columns) * ROOM // unit
        if not units:
            raise ModelError(f"{label}: {unit} rows of {columns} do not fit into a binding of {most} bytes.")
        parts = []
        for start in range(0, rows, units * unit):
            count = min(units * unit, rows - start)
            room = room_for(count)
            code_bytes, scale_bytes = planes.code_bytes(room, columns), planes.scale_bytes(room, columns)
            edge = -(-code_bytes // limits.offset_alignment) * limits.offset_alignment
            buffer = self.ledger.buffer(edge + scale_bytes, label)
            scales = Span(buffer, edge, scale_bytes) if scale_bytes else None
            parts.append(MatrixPart(start, count, buffer, Span(buffer, 0, code_bytes), scales))
        return parts

    async def _stream(self, tensor: Tensor, order: RowOrder, parts: Sequence[MatrixPart]) -> None:
        first_row = 0
        for start, size, rows in _pieces(tensor):
            staging = self._room(size)
            self.device.write(staging, 0, await self.gguf.source.piece(start, size))
            tape = Tape(self.device, tensor.name)
            for part in parts:
                repack(tape, tensor, order, part, staging, first_row, rows)
            tape.program().replay()
            tape.free()
            self._sent += size
            if self._sent >= PIECE:
                await self.device.flush(ON_THE_WAY)
                self._sent = 0
            self.progress(size)
            first_row += rows

    def _room(self, size: int) -> Buffer:
        """The staging buffer, large enough for a piece."""
        if self._staging is None or self._staging.size < size:
            if self._staging is not None:
                self.device.free(self._staging)
            self._staging = self.device.buffer(max(size, 1 << 20), "staging")
        return self._staging


def _pieces(tensor: Tensor) -> Iterator[tuple[int, int, int]]:
    """A tensor in pieces: (offset, size, rows) of whole rows, and, except for the last, of whole words."""
    row_bytes = tensor.format.row_nbytes(tensor.shape[0])
    rows = tensor.elements // tensor.shape[0]
    step = max(PIECE // row_bytes // 4 * 4, 1)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        yield tensor.offset + start * row_bytes, count * row_bytes, count


def room_for(rows: int) -> int:
    """The padded number of rows of a part."""
    return -(-rows // ROOM) * ROOM


def repack(
    tape: Tape, tensor: Tensor, order: RowOrder, part: MatrixPart, staging: Buffer, first_row: int, rows: int
) -> None:
    """Records the repacking of `rows` rows from `staging` into `part`."""
    blocks = -(-tensor.shape[0] // 32)
    row_words = tensor.format.row_nbytes(tensor.shape[0]) // 4
    targets = {"raw": staging, "codes": part.codes, "scales": part.scales or part.codes}
    params = {"blocks": blocks, "count": rows * blocks, "first_row": first_row, "row_words": row_words}
    params |= {"group": order.group, "half": order.half, "group_stride": order.group_stride}
    params |= {"step": order.step, "add": order.add, "first": part.first, "rows": part.rows}
    constants = PLANES[tensor.type].repack_constants
    tape.run("repack", [-(-rows * blocks // 64)], targets, params, constants)
