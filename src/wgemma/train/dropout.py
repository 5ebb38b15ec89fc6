"""Dropout on each target's input to A: zeroes a share of the numbers and scales up the rest.

A hash of the pass's seed and the place in the model chooses them, so the backward pass and recomputed layers drop the
same ones. Matrices that share their input share the mask.
"""

from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Low, Lows
from wgemma.model.direct import DirectMatmuls
from wgemma.model.matmul import Input, Matmuls


class Dropout:
    """Records dropout; write `seed` before every pass."""

    def __init__(self, ledger: Ledger, lows: Lows, rows: int, share: float) -> None:
        every = [low for layer in lows.layers for low in layer.values()]
        self.share = min(round(share * 2**32), 2**32 - 1)  # as a threshold on 32-bit hashes
        self.larger = 1 / (1 - share)
        self.seed = ledger.buffer(4, "seed")
        self.output = ledger.buffer(4 * rows * max(low.a.columns for low in every), "dropout output")
        self._salts = {id(low): salt for salt, low in enumerate(every)}

    def apply(self, tape: Tape, low: Low, rows: int, x: Binding, y: Buffer | None = None) -> Buffer:
        """Writes x after dropout to `output`, or adds it to y."""
        goal = self.output if y is None else y
        bindings: dict[str, Binding] = {"x": x, "y": goal, "seed": self.seed}
        params = {"count": low.a.columns, "threshold": self.share, "scale": self.larger}
        params |= {"salt": self._salts[id(low)], "add": y is not None}
        tape.run("dropout", [-(-low.a.columns // 256), rows], bindings, params)
        return goal


class ManyRows(Matmuls):
    """Products that use the many-row path for any number of rows, as the backward pass does; with dropout, if any."""

    few = 0
    middle = (0, 0)
    exact_middle = 0
    grouped = (0, 0)
    dropout: Dropout | None = None

    def project(self, tape: Tape, low: Low, rows: int, source: Input, z: Binding) -> Input:
        if self.dropout is None:
            return super().project(tape, low, rows, source, z)
        x = self.settled(tape, rows, source)
        super().project(tape, low, rows, self.dropout.apply(tape, low, rows, x), z)
        return x


class DirectManyRows(ManyRows, DirectMatmuls):
    """The same on a browser's software adapter."""
