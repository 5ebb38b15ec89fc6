"""How many rows of a prompt go into one pass: as many as the GPU computes in about a second, so that a prompt can be
stopped and can say how far it is. Fast GPUs take the longest passes, which are the most efficient."""

from time import perf_counter

from wgemma.engine.buckets import tiles
from wgemma.gpu.device import Device

SECONDS = 1.0  # the longest a pass should take


class Stride:
    """Measures passes of up to `most` rows and chooses the length of the next; software adapters begin with short ones.

    Only passes that the host waited for are believed, since of others it learns too late that they are done; and only
    the second of two alike, since submitting to a software adapter may take until the pass before is done."""

    def __init__(self, device: Device, most: int) -> None:
        self._device = device
        self._tiles = tiles(most)
        self.rows = min(most, self._tiles[0]) if device.compact else most
        self._unknown = True
        self._flying = 0  # rows of the pass in flight
        self._since = 0.0  # when the GPU began it

    def begin(self) -> None:
        """Starts a prompt, on an idle GPU."""
        self._flying = 0

    async def follow(self, rows: int) -> bool:
        """Waits for the pass before the one of `rows` rows submitted last; while the speed is unknown, for both.
        Returns whether it was both."""
        submitted = perf_counter()
        await self._device.pace()
        if self._flying == rows:
            self._measure(submitted)
        else:
            self._since = perf_counter()
        self._flying = rows
        if not self._unknown or rows < self._tiles[0]:
            return False
        await self._device.pace()
        self._since = submitted
        self._measure(submitted)
        self._flying, self._unknown = 0, False
        return True

    def _measure(self, submitted: float) -> None:
        """Times the pass that was in flight; the host has been waiting for it since `submitted`."""
        now = perf_counter()
        took, waited = now - self._since, now - submitted
        self._since = now
        if self._flying < self._tiles[0]:
            return  # a few rows take as long as many
        rate = self._flying / max(took, 1e-9)
        fitting = max((rows for rows in self._tiles if rows <= rate * SECONDS), default=self._tiles[0])
        if fitting > self.rows or (took > SECONDS and waited > took / 2):
            self.rows = fitting
