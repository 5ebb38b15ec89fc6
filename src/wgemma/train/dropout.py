"""Dropout: of every target's input, what A sees has a share of its numbers missing and the rest made larger.

Which ones is a hash of the pass's seed and the place in the model, so the way back, and a layer that is computed again,
meet the same. Matrices that share their input share what is missing.
"""

from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Low, Lows
from wgemma.model.direct import DirectMatmuls
from wgemma.model.matmul import Input, Matmuls, Residual
from wgemma.train.ledger import Ledger


class Dropout:
    """Records it; `seed` is written before every pass."""

    def __init__(self, ledger: Ledger, lows: Lows, rows: int, share: float) -> None:
        every = [low for layer in lows.layers for low in layer.values()]
        self.share = min(round(share * 2**32), 2**32 - 1)  # of all hashes
        self.larger = 1 / (1 - share)
        self.seed = ledger.buffer(4, "seed")
        self.room = ledger.buffer(4 * rows * max(low.a.columns for low in every), "what is left of an input")
        self._salts = {id(low): salt for salt, low in enumerate(every)}

    def apply(self, tape: Tape, low: Low, rows: int, x: Binding, y: Buffer | None = None) -> Buffer:
        """What is left of x, in the room; or added to y."""
        goal = self.room if y is None else y
        bindings: dict[str, Binding] = {"x": x, "y": goal, "seed": self.seed}
        params = {"count": low.a.columns, "threshold": self.share, "scale": self.larger}
        params |= {"salt": self._salts[id(low)], "add": y is not None}
        tape.run("dropout", [-(-low.a.columns // 256), rows], bindings, params)
        return goal


class ManyRows(Matmuls):
    """Products for many rows, however few there are, because the way back has the same shapes; with dropout, if any."""

    few = 0
    dropout: Dropout | None = None

    def project(self, tape: Tape, low: Low, rows: int, source: Input, z: Binding) -> Input:
        if self.dropout is None:
            return super().project(tape, low, rows, source, z)
        x = self.settle(tape, rows, source) if isinstance(source, Residual) else source
        super().project(tape, low, rows, self.dropout.apply(tape, low, rows, x), z)
        return x


class DirectManyRows(ManyRows, DirectMatmuls):
    """The same on a browser's software adapter."""
