"""How many rows of a prompt go into one pass: as many as the GPU computes in about a second, so that a prompt can be
stopped and can say how far it is. Fast GPUs take the longest passes, which are the most efficient."""

from time import perf_counter

from wgemma.engine.buckets import tiles
from wgemma.gpu.device import Device

SECONDS = 1.0  # the longest a pass should take


class Stride:
    """Measures passes of up to `most` rows and chooses the length of the next. Only passes that the host waited for are
    believed: of others it learns too late that they are done."""

    def __init__(self, device: Device, most: int) -> None:
        self._device = device
        self._tiles = tiles(most)
        self.rows = min(most, self._tiles[0]) if device.compact else most
        self._measured = False
        self._flying = 0  # rows of the pass in flight
        self._since = 0.0  # when the GPU began it

    def begin(self) -> None:
        """Starts a prompt, on an idle GPU."""
        self._flying = 0

    async def follow(self, rows: int) -> bool:
        """Waits for the pass before the last one, which has `rows` rows. While the speed is unknown, and on software
        adapters, which do not take the next pass meanwhile anyway, waits for both; returns whether it did."""
        submitted = perf_counter()
        await self._device.pace()
        if self._flying:
            self._measure(self._flying, self._since, submitted)
        self._flying, self._since = rows, perf_counter()
        if not self._device.compact and (self._measured or rows < self._tiles[0]):
            return False
        await self._device.pace()
        self._measure(rows, submitted, submitted)
        self._flying = 0
        return True

    def _measure(self, rows: int, begun: float, waiting: float) -> None:
        """Learns from a pass that began then and is done now, which the host has been `waiting` for since."""
        took, waited = perf_counter() - begun, perf_counter() - waiting
        if rows < self._tiles[0]:
            return  # a few rows take as long as many
        self._measured = True
        rate = rows / max(took, 1e-9)
        fitting = max((size for size in self._tiles if size <= rate * SECONDS), default=self._tiles[0])
        if fitting > self.rows or (took > SECONDS and waited > took / 2):
            self.rows = fitting
