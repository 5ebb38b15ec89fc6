"""All trainable parameters in flat buffers: values, gradients and Adam's two moments share one layout.

An offset in the values is valid in the others too, so an update is one dispatch and a checkpoint a copy.
"""

from collections.abc import Mapping, Sequence

from wgemma.errors import TrainingError
from wgemma.gpu.device import Buffer, Device, Span
from wgemma.gpu.ledger import Ledger, Planned

KINDS = ("values", "gradients", "first", "second")
SAVED = ("values", "first", "second")
ALIGNMENT = 256
PAGE = 64 << 20  # the most bytes per buffer


class Measure:
    """Allocates in buffers that do not exist yet, to find out how large they must be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pages: list[int] = []

    def place(self, nbytes: int) -> Span:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if size > self.most:
            raise TrainingError(f"a matrix of {nbytes} bytes is too large for this GPU's bindings. Lower the rank.")
        if not self.pages or self.pages[-1] + size > self.most:
            self.pages.append(0)
        offset = self.pages[-1]
        self.pages[-1] += size
        return Span(Planned(nbytes), offset, nbytes)


class Flat:
    """The buffers; `place` allocates in the order that was measured."""

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
        """The gradients of these values."""
        return Span(self.buffers["gradients"][self.buffers["values"].index(value.buffer)], value.offset, value.size)

    async def read(self, device: Device) -> dict[str, bytes]:
        """The state to save for resuming."""
        return {kind: b"".join([await device.read(page) for page in self.buffers[kind]]) for kind in SAVED}

    def write(self, device: Device, saved: Mapping[str, bytes]) -> None:
        for kind in SAVED:
            data, start = memoryview(saved.get(kind, b"")), 0
            if len(data) != sum(self.sizes):
                raise TrainingError(f"the saved {kind} have {len(data)} bytes; this adapter has {sum(self.sizes)}.")
            for page, size in zip(self.buffers[kind], self.sizes, strict=True):
                device.write(page, 0, data[start : start + size])
                start += size
