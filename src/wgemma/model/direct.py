"""Records products on a browser's software adapter: one plain kernel for any number of rows, experts and the head.

There, workgroup memory is no faster than other memory and slow to compile, and barriers cost more than they save; so x
is always settled first and direct.wgsl does the rest.
"""

from typing import Any

from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.shaders import Values
from wgemma.gpu.tape import Tape
from wgemma.model.forms import direct_form, direct_grid
from wgemma.model.matmul import Choices, Groups, Matmuls
from wgemma.model.weights import Matrix


class DirectMatmuls(Matmuls):
    """The same products, as simply as possible."""

    few = 0
    middle = (0, 0)
    exact_middle = 0
    grouped = (0, 0)
    busy = 0  # never split sums
    threads = 64

    def group(self, tape: Tape, choices: Choices, groups: Groups) -> Choices:
        return choices

    def experts(
        self,
        tape: Tape,
        matrix: Matrix,
        choices: Choices,
        source: Binding,
        y: Binding,
        *,
        geglu: bool = False,
        weights: Buffer | None = None,
    ) -> None:
        rows, slots, each = choices.rows, choices.slots, matrix.rows // choices.experts
        constants = {"TYPE": matrix.planes.reader, "EXPERTS": True, "GEGLU": geglu, "WEIGHTED": weights is not None}
        for part in matrix.parts:
            bindings: dict[str, Binding] = {**part.bindings(), "x": source, "y": y, "chosen": choices.chosen}
            if weights is not None:
                bindings["weights"] = weights
            params = {"blocks": matrix.blocks, "n": each, "slots": slots, **part.experts(each)}
            results = each // 2 if geglu else each
            tape.run("direct", [-(-results // 64), rows, slots], bindings, params, constants)

    def _many(
        self,
        tape: Tape,
        n: int,
        rows: int,
        bindings: dict[str, Binding],
        params: Values,
        constants: dict[str, Any],
        shares: int = 1,
    ) -> None:
        assert shares == 1
        form = direct_form(self.device)
        tape.run("direct", direct_grid(n, rows, form), bindings, params, constants | form)
