"""A copy of one sequence's KV cache: only the rings, or the full layers, too."""

from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.cache import Cache


class Snapshot:
    """The rings and the first `positions` slots of full layers. `written` is how far positions had been written by
    then: what lies more than a ring below is missing from the copy, too."""

    def __init__(self, ledger: Ledger, positions: int, written: int, copies: list[tuple[Buffer, int]]) -> None:
        self.ledger = ledger
        self.positions = positions
        self.written = written
        self._copies = copies

    @classmethod
    async def take(cls, whole: Ledger, cache: Cache, positions: int, written: int) -> "Snapshot":
        """Raises `OutOfMemory` if it does not fit."""
        ledger, pieces = whole.part(), cache.pieces(positions)
        try:
            copies = [(ledger.buffer(size, "snapshot"), size) for _, size in pieces]
            await ledger.device.confirm()
        except BaseException:
            ledger.free()
            raise
        tape = Tape(ledger.device, "snapshot")
        for (buffer, size), (copy, _) in zip(pieces, copies, strict=True):
            tape.copy(buffer, 0, copy, 0, size)
        tape.program().replay()
        return cls(ledger, positions, written, copies)

    def put_back(self, cache: Cache) -> None:
        tape = Tape(self.ledger.device, "put back")
        for (buffer, _), (copy, size) in zip(cache.pieces(self.positions), self._copies, strict=True):
            tape.copy(copy, 0, buffer, 0, size)
        tape.program().replay()

    def free(self) -> None:
        self.ledger.free()
