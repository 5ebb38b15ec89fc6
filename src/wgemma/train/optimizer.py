"""AdamW over all trainable parameters at once: each kernel is recorded once, and only its uniforms change from step to
step (kernels/adamw.wgsl, kernels/sum_squares.wgsl)."""

import struct
from collections.abc import Callable

from wgemma.gpu.device import Program
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.forms import THREADS
from wgemma.train.flat import KINDS, Flat
from wgemma.train.settings import TrainingSettings

GROUPS = 256  # workgroups that share all parameters


class AdamW:
    """Updates the values of `flat` by its gradients, and clears the gradients."""

    def __init__(self, ledger: Ledger, flat: Flat, settings: TrainingSettings) -> None:
        self.device = ledger.device
        self.flat = flat
        self.settings = settings
        self.total = ledger.buffer(4, "sum of the gradients' squares")
        self.shares = ledger.buffer(4 * GROUPS, "sums of squares")
        self._recorded: dict[str, tuple[Tape, Program]] = {}

    async def sum_of_squares(self) -> float:
        """The gradients' sum of squares, by which `step` clips."""

        def record(tape: Tape) -> None:
            for i, (gradients, size) in enumerate(zip(self.flat.buffers["gradients"], self.flat.sizes, strict=True)):
                bound = {"gradients": gradients, "shares": self.shares}
                tape.run("sum_squares", [GROUPS], bound, {"count": size // 4}, {"THREADS": THREADS})
                bound = {"shares": self.shares, "norm": self.total}
                params = {"count": GROUPS, "fresh": i == 0}
                tape.run("sum_squares", [1], bound, params, {"THREADS": THREADS, "JOIN": True})

        self._once("norm", record)[1].replay()
        (total,) = struct.unpack("<f", await self.device.read(self.total))
        return float(total)

    def step(self, rate: float, step: int, share: float) -> None:
        """One update; gradients are multiplied by `share`."""
        settings, (beta1, beta2) = self.settings, map(float, self.settings.betas)
        changing = {
            "rate": float(rate),
            "correction1": 1 - beta1 ** (step + 1),
            "correction2": 1 - beta2 ** (step + 1),
            "share": share,
        }
        fixed = {
            "beta1": beta1,
            "beta2": beta2,
            "eps": float(settings.eps),
            "decay": float(settings.weight_decay),
            "clip": float(settings.clip),
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
        }
        params = [{"count": size // 4, **fixed, **changing} for size in self.flat.sizes]

        def record(tape: Tape) -> None:
            for page, values in enumerate(params):
                bound = {kind: self.flat.buffers[kind][page] for kind in KINDS} | {"norm": self.total}
                tape.run("adamw", [GROUPS], bound, values)

        tape, program = self._once("update", record)
        for page, values in enumerate(params):
            tape.change(page, values)
        program.replay()

    def _once(self, label: str, record: Callable[[Tape], None]) -> tuple[Tape, Program]:
        if label not in self._recorded:
            tape = Tape(self.device, label)
            record(tape)
            self._recorded[label] = tape, tape.program()
        return self._recorded[label]

    def free(self) -> None:
        """Frees the tapes; the ledger owns the buffers."""
        for tape, _ in self._recorded.values():
            tape.free()
        self._recorded.clear()
