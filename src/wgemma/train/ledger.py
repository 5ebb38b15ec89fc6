"""All that training allocates goes through a ledger: it knows what there is, gives it back, and can be asked before,
without a GPU, how much there would be."""

from wgemma.gpu.device import Buffer, Device


class Nothing:
    """A buffer that is only thought of."""

    def __init__(self, size: int) -> None:
        self.size = size


class Ledger:
    """Makes buffers on a device; without one, of nothing."""

    def __init__(self, device: Device | None = None) -> None:
        self.device = device
        self.nbytes = 0
        self.largest = 0
        self._buffers: list[Buffer] = []

    def buffer(self, size: int, label: str) -> Buffer:
        self.nbytes += size
        self.largest = max(self.largest, size)
        if self.device is None:
            return Nothing(size)
        buffer = self.device.buffer(size, label)
        self._buffers.append(buffer)
        return buffer

    def free(self) -> None:
        for buffer in self._buffers:
            assert self.device is not None
            self.device.free(buffer)
        self._buffers.clear()
