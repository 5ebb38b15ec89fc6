"""The training loop: step after step, with checkpoints, validation, and a clean stop.

It knows neither files nor the GPU: a `Teachable` computes and a `Storage` saves, so the same loop runs in a web page,
where nothing is saved. After an interruption it resumes from the last checkpoint and learns exactly what it would have
learnt without it.
"""

import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from wgemma.engine.request import Cancel
from wgemma.errors import TrainingError
from wgemma.sync import breathe
from wgemma.train.batches import Batches, Pack, Step
from wgemma.train.checkpoints import Checkpoint, Storage, save, steps_saved
from wgemma.train.settings import TrainingSettings

if TYPE_CHECKING:
    from wgemma.files.adapters import AdapterFile

RECENT = 20  # steps used to estimate the remaining time
NAMED = 8  # lines listed when no single one is to blame


class Teachable(Protocol):
    """What the loop trains: an adapter, its gradients and the optimizer's moments. Steps count from 0."""

    async def accumulate(self, packs: Sequence[Pack], targets: int, step: int) -> float:
        """Accumulates the gradients of Σ nll / targets; returns Σ nll."""
        ...

    async def update(self, rate: float, step: int) -> float:
        """Clips the gradients, updates the weights and clears the gradients; returns the norm before clipping. If it is
        not finite, the weights are unchanged."""
        ...

    async def evaluate(self, packs: Sequence[Pack]) -> tuple[float, int]:
        """Σ nll and the number of targets, without dropout; changes nothing."""
        ...

    async def state(self) -> dict[str, bytes]: ...
    async def restore(self, state: dict[str, bytes]) -> None: ...
    async def adapter(self) -> "AdapterFile": ...
    def free(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """A finished step. `epoch` counts from 1; `memory` is bytes on the GPU; `validation` is the loss on held-out
    examples, if it was computed after this step."""

    step: int
    steps: int
    epoch: int
    loss: float
    rate: float
    norm: float
    tokens_per_second: float
    seconds_left: float
    memory: int
    validation: float | None = None


class Trainer:
    """One run. `model` and `data` are fingerprints, `held` the validation packs; without a storage there are no
    checkpoints."""

    def __init__(
        self,
        learner: Teachable,
        batches: Batches,
        settings: TrainingSettings,
        storage: Storage | None,
        *,
        held: Sequence[Pack] = (),
        model: str = "",
        data: str = "",
        cancel: Cancel | None = None,
        memory: Callable[[], int] = lambda: 0,
    ) -> None:
        self.learner = learner
        self.batches = batches
        self.settings = settings
        self.storage = storage
        self.held = held
        self.model = model
        self.data = data
        self.cancel = cancel
        self.memory = memory
        self.step = 0  # updates made
        self.steps = settings.steps or batches.count(settings.epochs)
        self.losses: list[float] = []
        self.validation: list[tuple[int, float]] = []
        self.stopped = False  # by `cancel`, before the end
        self._saved = -1
        self._began = 0  # the step at which this run started
        self._times: deque[tuple[float, int]] = deque(maxlen=RECENT)  # (seconds, tokens) of recent steps

    async def resume(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint of the same model, data and settings."""
        checkpoint.refuse_model(self.model)
        checkpoint.refuse_others(self.settings, self.data)
        await self.learner.restore(checkpoint.tensors)
        self.step = self._saved = checkpoint.step
        self.losses, self.validation = list(checkpoint.losses), list(checkpoint.validation)

    async def run(self) -> AsyncGenerator[Progress, None]:
        """Runs the remaining steps. You can leave the loop after any step, but only `cancel` saves first."""
        steps = self.batches.steps(self.step)
        self._began = self.step
        while self.step < self.steps and not self.stopped:
            await breathe()
            step = next(steps)
            started = perf_counter()
            rate = self.settings.rate_at(self.step, self.steps)
            loss, norm = await self._advance(step, rate)
            if len(self.losses) == self._began + 2:
                self._times.clear()  # the first step also compiled the kernels
            self._times.append((perf_counter() - started, step.rows))
            validation = None
            self.stopped = self.step < self.steps and self.cancel is not None and self.cancel.is_set()
            due = self.step == self.steps or self.step % self.settings.every(self.steps) == 0
            if due:
                validation = await self._validate()
            if due or self.stopped:
                await self._save(step.packs, proved=validation is not None)
            yield self._progress(step, loss, rate, norm, validation)

    async def _advance(self, step: Step, rate: float) -> tuple[float, float]:
        """One update; returns the loss and the gradient norm."""
        total = await self.learner.accumulate(step.packs, step.targets, self.step)
        if not math.isfinite(total):
            raise TrainingError(await self._blame(step.packs, f"the loss became {total} in step {self.step + 1}"))
        norm = await self.learner.update(rate, self.step)
        if not math.isfinite(norm):
            raise TrainingError(await self._blame(step.packs, f"the gradient became {norm} in step {self.step + 1}"))
        loss = total / step.targets
        self.step += 1
        self.losses.append(loss)
        return loss, norm

    async def _validate(self) -> float | None:
        if not self.held:
            return None
        total, targets = await self.learner.evaluate(self.held)
        if not math.isfinite(total):
            raise TrainingError(
                await self._blame(self.held, f"the validation loss became {total} after step {self.step}")
            )
        self.validation.append((self.step, total / targets))
        return total / targets

    async def _save(self, packs: Sequence[Pack], *, proved: bool) -> None:
        """Saves a checkpoint, unless the update corrupted the weights (as too high a rate does); then the last one is
        still good. `packs` are used to check, if no validation has `proved` the weights yet."""
        if self._saved == self.step:
            return
        if not proved and await self._spoilt(packs[0]):
            raise TrainingError(
                await self._blame(packs, f"the weights no longer give a finite loss after step {self.step}")
            )
        if self.storage is None:
            return
        tensors = await self.learner.state()
        made = (self.step, self.settings, self.model, self.data, tensors, self.losses, self.validation)
        await save(self.storage, Checkpoint(*made, await self.learner.adapter()))
        self._saved = self.step

    def _progress(self, step: Step, loss: float, rate: float, norm: float, validation: float | None) -> Progress:
        seconds, tokens = (sum(column) for column in zip(*self._times, strict=True))
        return Progress(
            step=self.step,
            steps=self.steps,
            epoch=step.epoch + 1,
            loss=loss,
            rate=rate,
            norm=norm,
            tokens_per_second=tokens / max(seconds, 1e-9),
            seconds_left=(self.steps - self.step) * seconds / len(self._times),
            memory=self.memory(),
            validation=validation,
        )

    async def _blame(self, packs: Sequence[Pack], trouble: str) -> str:
        """What happened and which example caused it: tries each pack alone, then each example of the bad ones."""
        bad = [pack for pack in packs if await self._spoilt(pack)]
        lines = [example.line for pack in bad for example in pack if await self._spoilt(Pack((example,)))]
        everything = [example.line for pack in packs for example in pack]
        saved = await steps_saved(self.storage) if self.storage else []
        kept = f" checkpoint-{saved[-1]} in {self.storage.name} is the last good one." if self.storage and saved else ""
        if lines and (len(lines) < len(everything) or len(everything) == 1):
            told = f"line {lines[0]}" if len(lines) == 1 else f"lines {_listed(lines)}"
            return f"{trouble}, caused by the example in {told}. Fix it or remove it.{kept}"
        advice = "Continue from there with --resume and a lower --lr." if kept else "Start again with a lower --lr."
        return f"{trouble}, and no single example is to blame (lines {_listed(everything)}).{kept} {advice}"

    async def is_sound(self) -> bool:
        """Whether the weights still give a finite loss for at least some examples."""
        packs = [pack for step in self.batches.epoch(0)[:2] for pack in step.packs]
        return not all([await self._spoilt(pack) for pack in packs])

    async def _spoilt(self, pack: Pack) -> bool:
        total, _ = await self.learner.evaluate([pack])
        return not math.isfinite(total)


def _listed(lines: Sequence[int]) -> str:
    return ", ".join(map(str, lines[:NAMED])) + (", …" if len(lines) > NAMED else "")
