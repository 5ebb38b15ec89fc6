"""All trainable numbers side by side: their values, gradients and Adam's two moments, in buffers of one layout.

A place in the values is a place in the others too, so an update is one dispatch and a checkpoint a copy.
"""

from collections.abc import Mapping, Sequence

from wgemma.errors import TrainingError
from wgemma.gpu.device import Buffer, Device, Span
from wgemma.train.ledger import Ledger, Nothing

KINDS = ("values", "gradients", "first", "second")
SAVED = ("values", "first", "second")
ALIGNMENT = 256
PAGE = 64 << 20  # bytes of a buffer, at most


class Measure:
    """Hands out places in buffers that do not exist yet, to learn how large they must be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pages: list[int] = []

    def place(self, nbytes: int) -> Span:
        room = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if room > self.most:
            raise TrainingError(f"a matrix of {nbytes} bytes is too large for this GPU's bindings: lower the rank.")
        if not self.pages or self.pages[-1] + room > self.most:
            self.pages.append(0)
        offset = self.pages[-1]
        self.pages[-1] += room
        return Span(Nothing(nbytes), offset, nbytes)


class Flat:
    """The buffers, and places in them in the order they were measured in."""

    def __init__(self, ledger: Ledger, pages: Sequence[int]) -> None:
        self.sizes = list(pages)
        self.buffers: dict[str, list[Buffer]] = {kind: [] for kind in KINDS}
        self._measure = Measure(max(pages, default=0))
        for kind in KINDS:
            for size in pages:
                self.buffers[kind].append(ledger.buffer(size, f"adapter {kind}"))

    def place(self, nbytes: int) -> Span:
        span = self._measure.place(nbytes)
        return Span(self.buffers["values"][len(self._measure.pages) - 1], span.offset, span.size)

    def gradient(self, value: Span) -> Span:
        """The gradients of the numbers at a place."""
        return Span(self.buffers["gradients"][self.buffers["values"].index(value.buffer)], value.offset, value.size)

    async def read(self, device: Device) -> dict[str, bytes]:
        """What must be kept to go on later."""
        return {kind: b"".join([await device.read(page) for page in self.buffers[kind]]) for kind in SAVED}

    def write(self, device: Device, saved: Mapping[str, bytes]) -> None:
        for kind in SAVED:
            data, start = memoryview(saved[kind]), 0
            if len(data) != sum(self.sizes):
                raise TrainingError(f"the saved {kind} have {len(data)} bytes; this adapter has {sum(self.sizes)}.")
            for page, size in zip(self.buffers[kind], self.sizes, strict=True):
                device.write(page, 0, data[start : start + size])
                start += size
