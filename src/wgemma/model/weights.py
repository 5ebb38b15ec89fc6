"""From the file to the GPU and nowhere else: tensors are streamed in pieces, repacked by a kernel, and stay there.

A `Matrix` is one or more tensors of one type, their rows in the order the matmuls like, cut by rows into parts that fit
a binding. The Python heap never holds more than one piece, and of a memory-mapped file not even that.
"""

import math
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.gpu.device import Buffer, Device, Span
from wgemma.gpu.tape import Tape
from wgemma.model.planes import PLANES, Planes

PIECE = 32 << 20  # bytes on their way to the GPU at a time
ROOM = 64  # parts have room for a multiple of so many rows: matvec.wgsl asks for some before it knows their number
_FAR = 1 << 30  # a group that never ends


@dataclass(frozen=True, slots=True)
class RowOrder:
    """Where row i of a tensor goes: add + (i / group) · group_stride + (i % group % half) · step + i % group / half."""

    add: int = 0
    group: int = _FAR
    half: int = _FAR
    group_stride: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [first, first + rows) of a matrix, in planes."""

    first: int
    rows: int
    buffer: Buffer
    codes: Span
    scales: Span | None

    def bindings(self) -> dict[str, Buffer | Span]:
        return {"codes": self.codes, "scales": self.scales or self.codes}


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` × `columns` weights of one type; zeros fill the last block of 32 of a row."""

    kind: str
    rows: int
    columns: int
    parts: tuple[Part, ...]

    @property
    def planes(self) -> Planes:
        return PLANES[self.kind]

    @property
    def blocks(self) -> int:
        return -(-self.columns // 32)


class Uploader:
    """Brings the tensors of one file to one device. `progress` hears of every piece's bytes."""

    def __init__(self, device: Device, gguf: Gguf, progress: Callable[[int], None] = lambda nbytes: None) -> None:
        self.device = device
        self.gguf = gguf
        self.progress = progress
        self.buffers: list[Buffer] = []
        self._staging: Buffer | None = None

    def close(self) -> None:
        """Gives the staging memory back; the matrices stay."""
        if self._staging is not None:
            self.device.free(self._staging)
            self._staging = None

    async def vector(self, tensor: Tensor) -> "array[float]":
        """A small tensor as floats; one that holds NaN or Inf is refused here rather than felt in every token."""
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
            raise ModelError(f"{tensor.name} holds a number that is not finite: the file is damaged.")
        return values

    def upload(self, data: bytes | memoryview, label: str) -> Buffer:
        buffer = self.device.buffer(len(data), label)
        self.buffers.append(buffer)
        self.device.write(buffer, 0, data)
        return buffer

    async def matrix(
        self, sources: Sequence[tuple[Tensor, RowOrder]], unit: int = 1, *, ragged: bool = False
    ) -> Matrix:
        """One matrix from tensors of one type and width; a part never splits `unit` rows that belong together. Those
        who multiply with a `ragged` one know that its rows may end within a block of 32."""
        first = sources[0][0]
        kind, columns = first.type, first.shape[0]
        step = 4 if ragged else 32
        if columns % step:
            raise ModelError(f"{first.name} has rows of {columns} values; wgemma needs a multiple of {step}.")
        rows = sum(tensor.elements // columns for tensor, _ in sources)
        parts = tuple(self._parts(PLANES[kind], rows, -(-columns // 32) * 32, unit, first.name))
        await self.device.confirm()
        for tensor, order in sources:
            await self._stream(tensor, order, parts)
        return Matrix(kind, rows, columns, parts)

    def _parts(self, planes: Planes, rows: int, columns: int, unit: int, label: str) -> list[Part]:
        limits = self.device.limits
        most = min(limits.binding, limits.buffer - limits.offset_alignment)
        units = most // planes.nbytes(ROOM, columns) * ROOM // unit
        if not units:
            raise ModelError(f"{label}: {unit} rows of {columns} are too many for a binding of {most} bytes.")
        parts = []
        for start in range(0, rows, units * unit):
            count = min(units * unit, rows - start)
            room = room_for(count)
            code_bytes, scale_bytes = planes.code_bytes(room, columns), planes.scale_bytes(room, columns)
            edge = -(-code_bytes // limits.offset_alignment) * limits.offset_alignment
            buffer = self.device.buffer(edge + scale_bytes, label)
            self.buffers.append(buffer)
            scales = Span(buffer, edge, scale_bytes) if scale_bytes else None
            parts.append(Part(start, count, buffer, Span(buffer, 0, code_bytes), scales))
        return parts

    async def _stream(self, tensor: Tensor, order: RowOrder, parts: Sequence[Part]) -> None:
        row_bytes = tensor.format.row_nbytes(tensor.shape[0])
        rows = tensor.elements // tensor.shape[0]
        step = max(PIECE // row_bytes, 1)
        if self._staging is None or self._staging.size < min(step, rows) * row_bytes:
            self.close()
            self._staging = self.device.buffer(max(min(step, rows) * row_bytes, 1 << 20), "staging")
        for start in range(0, rows, step):
            count = min(step, rows - start)
            piece = await self.gguf.source.piece(tensor.offset + start * row_bytes, count * row_bytes)
            self.device.write(self._staging, 0, piece)
            tape = Tape(self.device, tensor.name)
            for part in parts:
                repack(tape, tensor, order, part, self._staging, start, count)
            tape.program().replay()
            if count == step:
                await self.device.wait()  # or pieces would pile up in the driver's own staging memory
            tape.free()
            self.progress(count * row_bytes)


def room_for(rows: int) -> int:
    """The rows that a part of so many has room for."""
    return -(-rows // ROOM) * ROOM


def repack(tape: Tape, tensor: Tensor, order: RowOrder, part: Part, staging: Buffer, first_row: int, rows: int) -> None:
    """Records the repacking of `rows` rows that lie in `staging` into `part`."""
    blocks = -(-tensor.shape[0] // 32)
    row_words = tensor.format.row_nbytes(tensor.shape[0]) // 4
    targets = {"raw": staging, "codes": part.codes, "scales": part.scales or part.codes}
    params = (blocks, rows * blocks, first_row, order.group, order.half, order.group_stride, order.step, order.add)
    constants = PLANES[tensor.type].repack_constants
    tape.run("repack", [-(-rows * blocks // 64)], targets, (*params, part.first, part.rows, row_words), constants)
