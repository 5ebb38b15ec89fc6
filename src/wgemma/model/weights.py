"""From the file to the GPU and nowhere else: tensors are streamed in pieces, repacked by a kernel, and stay there.

A `Matrix` is one or more tensors of one type, their rows in the order the matmuls like, cut by rows into parts that fit
a binding. The Python heap never holds more than one piece, and of a memory-mapped file not even that.
"""

import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from wgemma.errors import ModelError
from wgemma.files.gguf import Gguf, Tensor
from wgemma.gpu.device import Buffer, Device, Span
from wgemma.gpu.tape import Tape
from wgemma.model.planes import PLANES, Planes

PIECE = 32 << 20  # bytes that are sent to the GPU at once
ON_THE_WAY = 4 * PIECE  # bytes that wait for it in the driver's own memory, at most
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

    def experts(self, each: int) -> dict[str, int]:
        """Which experts these rows are, `each` so many: what kernels that pick one want to know."""
        return {"first_expert": self.first // each, "experts": self.rows // each}


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
        self._sent = 0  # bytes since the last flush
        self._small: dict[str, bytes] = {}

    def close(self) -> None:
        """Gives the staging memory back; the matrices stay."""
        self.expect(())
        if self._staging is not None:
            self.device.free(self._staging)
            self._staging = None

    def expect(self, tensors: Iterable[Tensor]) -> None:
        """Says what will be loaded, in about this order, so that a slow source can fetch it ahead."""
        self.gguf.source.expect((start, size) for tensor in tensors for start, size, _ in _pieces(tensor))

    async def small(self, tensor: Tensor) -> bytes:
        """The bytes of a tensor that is read over and over, fetched once."""
        if tensor.name not in self._small:
            self._small[tensor.name] = bytes(await self.gguf.source.read(tensor.offset, tensor.nbytes))
        return self._small[tensor.name]

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
        """Staging memory for a piece."""
        if self._staging is None or self._staging.size < size:
            if self._staging is not None:
                self.device.free(self._staging)
            self._staging = self.device.buffer(max(size, 1 << 20), "staging")
        return self._staging


def _pieces(tensor: Tensor) -> Iterator[tuple[int, int, int]]:
    """A tensor's bytes on their way: (offset, size, rows) of whole rows, and of whole words but for the last."""
    row_bytes = tensor.format.row_nbytes(tensor.shape[0])
    rows = tensor.elements // tensor.shape[0]
    step = max(PIECE // row_bytes // 4 * 4, 1)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        yield tensor.offset + start * row_bytes, count * row_bytes, count


def room_for(rows: int) -> int:
    """The rows that a part of so many has room for."""
    return -(-rows // ROOM) * ROOM


def repack(tape: Tape, tensor: Tensor, order: RowOrder, part: Part, staging: Buffer, first_row: int, rows: int) -> None:
    """Records the repacking of `rows` rows that lie in `staging` into `part`."""
    blocks = -(-tensor.shape[0] // 32)
    row_words = tensor.format.row_nbytes(tensor.shape[0]) // 4
    targets = {"raw": staging, "codes": part.codes, "scales": part.scales or part.codes}
    params = {"blocks": blocks, "count": rows * blocks, "first_row": first_row, "row_words": row_words}
    params |= {"group": order.group, "half": order.half, "group_stride": order.group_stride}
    params |= {"step": order.step, "add": order.add, "first": part.first, "rows": part.rows}
    constants = PLANES[tensor.type].repack_constants
    tape.run("repack", [-(-rows * blocks // 64)], targets, params, constants)
