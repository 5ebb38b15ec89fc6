"""An adapter in training: its parameters on the GPU, the gradients of a step's packs, and the update.

A pass takes as many packs as fit its rows. It is recorded once per number of rows and replayed for every pack, because
everything that differs between packs (tokens, positions, targets) is data. Gradients are of the sum of the losses; the
update divides them by the number of targets, so a step does not depend on how its examples are packed.
"""

import math
import random
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from wgemma.engine.engine import Engine
from wgemma.errors import TrainingError
from wgemma.files.adapters import AdapterFile, Pair
from wgemma.gpu.device import Buffer, Device, Program, Span
from wgemma.gpu.ledger import Ledger, Planned
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Low, Lows, TensorPlace, lows_over, most_rows
from wgemma.model.cache import PackedCache
from wgemma.model.passes import Pass
from wgemma.model.rows import ROW_BYTES, Row, pack_rows
from wgemma.model.text import TextWeights
from wgemma.sync import breathe
from wgemma.train.activations import KeptActivations
from wgemma.train.backward import Backward
from wgemma.train.batches import Pack, bucket, passes
from wgemma.train.data import IGNORED
from wgemma.train.dropout import Dropout
from wgemma.train.flat import PAGE, Flat, Measure
from wgemma.train.forward import TrainingDecoder
from wgemma.train.losses import NONE, Losses
from wgemma.train.optimizer import AdamW
from wgemma.train.settings import TARGETS, TrainingSettings


class Learner:
    """One adapter on one model. `rows` is the most rows per pass."""

    def __init__(self, engine: Engine, settings: TrainingSettings, rows: int, ledger: Ledger) -> None:
        self.engine = engine
        self.settings = settings
        self.rows = rows
        self.device = device = engine.device
        self.weights = weights = engine.weights
        self.ledger = ledger
        self.tapes: list[Tape] = []
        self._programs: dict[tuple[int, bool], list[Program]] = {}
        self._targets = 1
        self.scales = ledger.buffer(4 * most_rows(settings.rank), "adapter scales")
        self.flat = Flat(ledger, measured(device, weights, settings).pages)
        self.lows = adapter_over(weights, settings, self.flat.place, self.scales)
        self.row_buffer = ledger.buffer(ROW_BYTES * rows, "rows")
        self.optimizer = AdamW(ledger, self.flat, settings)
        keeping = {"checkpointing": settings.checkpointing}
        self.cache = PackedCache(ledger, weights.config, rows, **keeping)
        self.kept = KeptActivations(ledger, weights, self.lows, rows, **keeping)
        size = 4 * rows * weights.config.width
        inputs = [ledger.buffer(size, f"input of layer {i}") for i in range(len(weights.layers))]
        self.decoder = TrainingDecoder(ledger, weights, self.kept, inputs)
        self.dropout = Dropout(ledger, self.lows, rows, settings.dropout) if settings.dropout else None
        self.losses = Losses(ledger, weights, rows)
        self.backward = Backward(ledger, self.decoder, self.cache, self.flat, self.lows)

    @classmethod
    async def begin(cls, engine: Engine, settings: TrainingSettings, rows: int) -> "Learner":
        """A new adapter, with A drawn from the seed and B zero; on failure everything is freed."""
        ledger = engine.ledger.part()
        try:
            learner = cls(engine, settings, rows, ledger)
            await engine.device.confirm()
            engine.device.write(learner.scales, 0, array("f", [settings.scale] * most_rows(settings.rank)).tobytes())
            learner.draw()
        except BaseException:
            ledger.free()
            raise
        return learner

    # -- the adapter's parameters

    def draw(self) -> None:
        """Draws A uniformly within ± 1 / √columns, as others do; B is zero, so that nothing changes at first."""
        chance = random.Random(f"{self.settings.seed} adapter").random
        for low, place in self._places():
            bound = low.a.columns**-0.5
            values = array("f", [bound * (2 * chance() - 1) for _ in range(low.rank * low.a.columns)])
            a = low.a.parts[0].codes
            self.device.write(a.buffer, a.offset + 4 * place.row * low.a.columns, values.tobytes())

    def put(self, adapter: AdapterFile) -> None:
        """Loads the parameters of an adapter with the same rank and targets."""
        wanted = {place.tensor for _, place in self._places()}
        if set(adapter.pairs) != wanted or any(pair.rank != self.settings.rank for pair in adapter.pairs.values()):
            raise TrainingError(f"{adapter.name} has a different rank or different targets from the settings.")
        for low, b in self._matrices():
            columns = array("f", bytes(b.size))
            for place in low.places:
                pair = adapter.pairs[place.tensor]
                a = low.a.parts[0].codes
                self.device.write(a.buffer, a.offset + 4 * place.row * low.a.columns, pair.a.tobytes())
                for j in range(low.rank):
                    columns[_columns(low, place, j)] = pair.b[j :: low.rank]
            self.device.write(b.buffer, b.offset, columns.tobytes())

    async def adapter(self) -> AdapterFile:
        """The current adapter."""
        return await self._read("values")

    async def gradients(self) -> AdapterFile:
        """The accumulated gradients, divided by the number of targets, in the shape of an adapter."""
        return await self._read("gradients", 1 / self._targets)

    async def _read(self, kind: str, factor: float = 1.0) -> AdapterFile:
        pages = []
        for page in self.flat.buffers[kind]:
            numbers = array("f", await self.device.read(page))
            pages.append(numbers if factor == 1 else array("f", (factor * number for number in numbers)))
        homes = self.flat.buffers["values"]
        pairs: dict[str, Pair] = {}
        for low, b in self._matrices():
            a = low.a.parts[0].codes
            columns = pages[homes.index(b.buffer)][b.offset // 4 : (b.offset + b.size) // 4]
            for place in low.places:
                first = a.offset // 4 + place.row * low.a.columns
                ours = pages[homes.index(a.buffer)][first : first + low.rank * low.a.columns]
                theirs = array("f", bytes(4 * low.rank * place.count))
                for j in range(low.rank):
                    theirs[j :: low.rank] = columns[_columns(low, place, j)]
                pairs[place.tensor] = Pair(low.rank, low.a.columns, place.count, ours, theirs, self.settings.scale)
        return AdapterFile("adapter", pairs, self.settings.alpha)

    def _matrices(self) -> Iterable[tuple[Low, Span]]:
        for layer in self.lows.layers:
            for low in layer.values():
                assert isinstance(low.b, Span)
                yield low, low.b

    def _places(self) -> Iterable[tuple[Low, TensorPlace]]:
        return ((low, place) for low, _ in self._matrices() for place in low.places)

    async def state(self) -> dict[str, bytes]:
        return await self.flat.read(self.device)

    async def restore(self, state: Mapping[str, bytes]) -> None:
        self.flat.write(self.device, state)

    # -- a step

    async def accumulate(self, packs: Sequence[Pack], targets: int, step: int) -> float:
        """Accumulates the gradients of Σ nll / targets; returns Σ nll."""
        self._targets = targets
        return await self._run(packs, step)

    async def evaluate(self, packs: Sequence[Pack]) -> tuple[float, int]:
        """Σ nll and the number of targets, without dropout; changes nothing."""
        return await self._run(packs), sum(pack.targets for pack in packs)

    async def _run(self, packs: Sequence[Pack], step: int | None = None) -> float:
        """The forward pass, and with a `step` the backward pass, too."""
        self.device.write(self.losses.total, 0, bytes(4))
        for number, some in enumerate(passes(packs, self.rows)):
            await self._put_rows(some)
            if self.dropout is not None:
                seed = random.Random(f"{self.settings.seed} dropout {step} {number}").getrandbits(32)
                self.device.write(self.dropout.seed, 0, struct.pack("<I", seed))
            for program in await self._program(bucket(sum(pack.rows for pack in some)), step is not None):
                program.replay()
                if self.device.shared:
                    await self.device.pace()
                await breathe()
        (total,) = struct.unpack("<f", await self.device.read(self.losses.total))
        return float(total)

    async def _put_rows(self, packs: Sequence[Pack]) -> None:
        rows: list[Row] = []
        tokens: list[int] = []
        targets = array("I")
        for pack in packs:
            for example in pack:
                rows += [Row(1, i, token, i) for i, token in enumerate(example.ids)]
                tokens += example.ids
                targets.extend(NONE if label == IGNORED else label for label in example.labels[1:])
                targets.append(NONE)
        spare = bucket(len(rows)) - len(rows)
        self.device.write(self.row_buffer, 0, pack_rows(rows + [Row(0, 0, 0, 0)] * spare))
        targets.extend([NONE] * spare)
        self.device.write(self.losses.targets, 0, targets.tobytes())
        if self.decoder.raw_rows is not None:
            await self.engine.fetch_rows(tokens, self.decoder)

    async def _program(self, rows: int, back: bool) -> list[Program]:
        """The recorded pass: forward and loss, then each layer's backward pass by itself, to keep submissions short."""
        if (rows, back) not in self._programs:
            self._programs[rows, back] = [self._finished(tape) for tape in self._record(rows, back)]
            await self.device.confirm()
        return self._programs[rows, back]

    def _finished(self, tape: Tape) -> Program:
        self.tapes.append(tape)
        return tape.program()

    def _record(self, rows: int, back: bool) -> Iterable[Tape]:
        x, matmuls = self.kept["head x"], self.decoder.products
        matmuls.dropout = self.dropout if back else None
        p = self._pass(rows, "forward")
        self.decoder.forward(p)
        self.losses.forward(p.tape, matmuls, rows, x)
        yield p.tape
        if not back:
            return
        p = self._pass(rows, "loss, backward")
        self.losses.backward(p.tape, matmuls, rows, x)
        self.backward.head(p, self.losses.d_head)
        yield p.tape
        for index in reversed(range(len(self.weights.layers))):
            p = self._pass(rows, f"layer {index}, backward")
            if self.settings.checkpointing:
                self.decoder.again(p, index)
            self.backward.layer(p, index)
            yield p.tape

    def _pass(self, rows: int, label: str) -> Pass:
        return Pass(Tape(self.device, label), rows, self.row_buffer, None, self.cache, rows, self.lows)

    async def update(self, rate: float, step: int) -> float:
        """Clips the gradients, updates the parameters and clears the gradients; returns the norm before clipping. If it
        is not finite, the parameters are unchanged."""
        share = 1 / self._targets
        norm = share * math.sqrt(await self.optimizer.sum_of_squares())
        if math.isfinite(norm):
            self.optimizer.step(rate, step, share)
        else:
            self.forget()
        return norm

    def forget(self) -> None:
        """Clears the gradients."""
        for gradients, size in zip(self.flat.buffers["gradients"], self.flat.sizes, strict=True):
            self.device.write(gradients, 0, bytes(size))

    @property
    def nbytes(self) -> int:
        """Bytes on the GPU besides the model's weights."""
        return self.ledger.nbytes

    def free(self) -> None:
        for tape in self.tapes:
            tape.free()
        self.tapes.clear()
        self.optimizer.free()
        self._programs.clear()
        self.ledger.free()


def adapter_over(
    weights: TextWeights, settings: TrainingSettings, place: Callable[[int], Span], scales: Buffer
) -> Lows:
    """A and B of every target, allocated by `place`."""
    targets = {TARGETS[name] for name in settings.targets}
    return lows_over(weights, settings.rank, targets, place, scales)


def _columns(low: Low, place: TensorPlace, j: int) -> slice:
    """A tensor's columns in row j of b."""
    first = j * low.width + place.first
    return slice(first, first + place.step * (place.count - 1) + 1, place.step)


def measured(device: Device, weights: TextWeights, settings: TrainingSettings) -> Measure:
    measure = Measure(min(device.limits.binding, PAGE))
    adapter_over(weights, settings, measure.place, Planned(0))
    if not measure.pages:
        raise TrainingError(f"this model has none of the targets {', '.join(settings.targets)}.")
    return measure
