"""Cross-entropy over the whole vocabulary without materialising all logits: the output matrix is used tile by tile.

The forward pass goes over all tiles to find each row's maximum, sum of exponentials and target logit. The backward pass
recomputes the logits, turns them into their gradients in place, and multiplies these into the input's gradient.
"""

from collections.abc import Iterator
from dataclasses import replace

from wgemma.gpu.device import Binding, Buffer, Span
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.forms import THREADS
from wgemma.model.matmul import Matmuls, Result
from wgemma.model.text import TextWeights
from wgemma.model.weights import Matrix, MatrixPart
from wgemma.train.backward import transposed

NONE = 0xFFFFFFFF  # a row without a target
TILE_BYTES = 64 << 20
UNIT = 256  # tokens: keeps their planes aligned for bindings


class Losses:
    """Records the loss of a pass's rows. `targets` holds each row's token, `total` sums the losses of passes."""

    def __init__(self, ledger: Ledger, weights: TextWeights, rows: int) -> None:
        self.weights = weights
        self.cap = weights.config.softcap or 0.0
        vocabulary = weights.head.rows
        self.width = min(max(TILE_BYTES // (4 * rows) // UNIT, 1) * UNIT, -(-vocabulary // UNIT) * UNIT)
        self.targets = ledger.buffer(4 * rows, "targets")
        self.state = ledger.buffer(16 * rows, "state of the rows' losses")
        self.nll = ledger.buffer(4 * rows, "losses")
        self.total = ledger.buffer(4, "loss")
        self.logits = ledger.buffer(4 * rows * self.width, "logits of a tile")
        self.d_head = ledger.buffer(4 * rows * weights.config.width, "gradient of the head's input")

    def forward(self, tape: Tape, matmuls: Matmuls, rows: int, x: Buffer) -> None:
        """The rows' losses, and their sum."""
        for i, tile in enumerate(tiles(self.weights.head, self.width)):
            self._logits(tape, matmuls, tile, rows, x)
            self._step(tape, tile, rows, "SCAN", fresh=i == 0)
        bindings: dict[str, Binding] = {"state": self.state, "targets": self.targets}
        bindings |= {"nll": self.nll, "total": self.total}
        tape.run("nll", [1], bindings, {"rows": rows}, {"THREADS": THREADS})

    def backward(self, tape: Tape, matmuls: Matmuls, rows: int, x: Buffer) -> None:
        """The gradient of the sum of the losses with respect to x."""
        for i, tile in enumerate(tiles(self.weights.head, self.width)):
            self._logits(tape, matmuls, tile, rows, x)
            self._step(tape, tile, rows, "BACK", fresh=False)
            one = replace(tile, parts=(replace(tile.parts[0], first=0),))
            transposed(tape, one, rows, self.logits, tile.rows, 0, self.d_head, add=i > 0)

    def _logits(self, tape: Tape, matmuls: Matmuls, tile: Matrix, rows: int, x: Buffer) -> None:
        one = replace(tile, parts=(replace(tile.parts[0], first=0),))
        matmuls.linear(tape, one, rows, x, Result(self.logits, then="SOFTCAP", cap=self.cap))

    def _step(self, tape: Tape, tile: Matrix, rows: int, mode: str, *, fresh: bool) -> None:
        bindings: dict[str, Binding] = {"logits": self.logits, "targets": self.targets, "state": self.state}
        params = {"width": tile.rows, "first": tile.parts[0].first, "fresh": fresh, "cap": self.cap}
        tape.run("loss", [rows], bindings, params, {"THREADS": THREADS, mode: True})


def tiles(matrix: Matrix, most: int) -> Iterator[Matrix]:
    """A matrix in tiles of at most `most` rows, each with one part that says where in the whole it starts."""
    planes, columns = matrix.planes, 32 * matrix.blocks
    for part in matrix.parts:
        for start in range(0, part.rows, most):
            count = min(most, part.rows - start)
            codes = Span(
                part.codes.buffer,
                part.codes.offset + planes.code_bytes(start, columns),
                planes.code_bytes(count, columns),
            )
            scales = None
            if part.scales is not None:
                before = part.scales.offset + planes.scale_bytes(start, columns)
                scales = Span(part.scales.buffer, before, planes.scale_bytes(count, columns))
            piece = MatrixPart(part.first + start, count, part.buffer, codes, scales)
            yield Matrix(matrix.kind, count, matrix.columns, (piece,))
