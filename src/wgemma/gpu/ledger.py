"""Buffer ownership: a ledger allocates buffers, counts them and frees them all at once.

A planning ledger allocates nothing, so running the same code with one gives the memory it needs, to the byte. A part's
buffers also count towards the whole ledger, and `limit` bounds the whole.
"""

from collections.abc import Iterable
from typing import Any

from wgemma.errors import OutOfMemory
from wgemma.gpu.device import Buffer, Device


class Planned:
    """A buffer that a planning ledger counted but did not allocate."""

    def __init__(self, size: int) -> None:
        self.size = size


class Ledger:
    """Buffers on one device. As a context manager, it frees what it still owns when the block ends."""

    def __init__(self, device: Device, *, plans: bool = False, limit: int | None = None) -> None:
        self.device = device
        self.plans = plans
        self.limit = limit
        self.nbytes = 0
        self.largest = 0
        self._whole: Ledger | None = None
        self._buffers: dict[int, Buffer] = {}
        self._parts: list[Ledger] = []

    def part(self) -> "Ledger":
        """A ledger whose buffers also count in this one, and are freed with it."""
        part = Ledger(self.device, plans=self.plans)
        part._whole = self
        self._parts.append(part)
        return part

    def buffer(self, size: int, label: str) -> Buffer:
        self._check_limit(size, label)
        buffer = Planned(-(-max(size, 4) // 4) * 4) if self.plans else self.device.buffer(size, label)
        self._buffers[id(buffer)] = buffer
        self._count(buffer.size)
        return buffer

    def buffers(self, sizes: Iterable[tuple[int, str]]) -> list[Buffer]:
        """Allocates all of them or none: if one does not fit, those before it are freed."""
        made: list[Buffer] = []
        try:
            made.extend(self.buffer(size, label) for size, label in sizes)
        except OutOfMemory:
            self.drop(*made)
            raise
        return made

    def drop(self, *buffers: Buffer) -> None:
        """Frees these buffers now."""
        for buffer in buffers:
            self.keep(buffer)
            if not self.plans:
                self.device.free(buffer)

    def keep(self, buffer: Buffer) -> Buffer:
        """Gives up ownership: the caller must free the buffer."""
        del self._buffers[id(buffer)]
        self._count(-buffer.size)
        return buffer

    def adopt(self, buffer: Buffer) -> Buffer:
        """Takes ownership of a buffer allocated elsewhere; frees it if the limit is exceeded."""
        try:
            self._check_limit(buffer.size, "a result")
        except OutOfMemory:
            self.device.free(buffer)
            raise
        self._buffers[id(buffer)] = buffer
        self._count(buffer.size)
        return buffer

    def free(self) -> None:
        """Frees everything, the parts' buffers included."""
        for part in list(self._parts):
            part.free()
        self.drop(*list(self._buffers.values()))
        if self._whole is not None and self in self._whole._parts:
            self._whole._parts.remove(self)

    @property
    def left(self) -> int | None:
        """Bytes left under the limit, or None if there is no limit."""
        if self._whole is not None:
            return self._whole.left
        return None if self.limit is None else max(self.limit - self.nbytes, 0)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self.largest = max(self.largest, nbytes)
        if self._whole is not None:
            self._whole._count(nbytes)

    def _check_limit(self, size: int, label: str) -> None:
        left = self.left
        if left is not None and size > left:
            raise OutOfMemory(f"{label} needs {size} bytes, but only {left} of the memory this model may use are left.")

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()
