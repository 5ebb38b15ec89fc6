"""An adapter in the making: its numbers on the GPU, the gradients of a step's packs, and the update that follows.

A pass takes as many packs as its rows hold. It is recorded once per number of rows and replayed for every pack, because
everything that differs between packs (tokens, positions, targets) is data. Gradients are of the sum of the losses; the
update divides them by the number of targets, so a step is the same however its examples are packed.
"""

import math
import random
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from wgemma.engine.engine import Engine
from wgemma.errors import TrainingError
from wgemma.files.adapters import AdapterFile, Pair
from wgemma.gpu.device import Binding, Buffer, Device, Program, Span
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Low, Lows, Place, lows_over, most_rows
from wgemma.model.decoder import Pass
from wgemma.model.forms import THREADS
from wgemma.model.text import TextWeights
from wgemma.sync import breathe
from wgemma.train.backward import Backward
from wgemma.train.batches import Pack, bucket, passes
from wgemma.train.data import IGNORED
from wgemma.train.dropout import Dropout
from wgemma.train.flat import PAGE, Flat, Measure
from wgemma.train.forward import TrainingDecoder
from wgemma.train.ledger import Ledger, Nothing
from wgemma.train.losses import NONE, Losses
from wgemma.train.rooms import PackedCache, Rooms
from wgemma.train.settings import TARGETS, Settings

GROUPS = 256  # workgroups that go through all numbers


class Learner:
    """One adapter on one model. `rows` is the most a pass takes."""

    def __init__(self, engine: Engine, settings: Settings, rows: int, ledger: Ledger) -> None:
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
        self.lows = adapter_room(weights, settings, self.flat.place, self.scales)
        self.row_buffer = ledger.buffer(16 * rows, "rows")
        self.norm = ledger.buffer(4, "norm of the gradients")
        self.shares = ledger.buffer(4 * GROUPS, "sums of squares")
        keeping = {"checkpointing": settings.checkpointing}
        self.cache = PackedCache(ledger, weights.config, rows, **keeping)
        self.rooms = Rooms(ledger, weights, self.lows, rows, **keeping)
        size = 4 * rows * weights.config.width
        inputs = [ledger.buffer(size, f"input of layer {i}") for i in range(len(weights.layers))]
        self.decoder = TrainingDecoder(device, weights, self.rooms, inputs, ledger)
        self.dropout = Dropout(ledger, self.lows, rows, settings.dropout) if settings.dropout else None
        self.losses = Losses(ledger, weights, rows)
        self.backward = Backward(ledger, self.decoder, self.cache, self.flat, self.lows)

    @classmethod
    async def begin(cls, engine: Engine, settings: Settings, rows: int) -> "Learner":
        """A fresh adapter, its A drawn by the seed and its B zero; nothing stays on the GPU when that fails."""
        ledger = Ledger(engine.device)
        try:
            learner = cls(engine, settings, rows, ledger)
            await engine.device.confirm()
            engine.device.write(learner.scales, 0, array("f", [settings.scale] * most_rows(settings.rank)).tobytes())
            learner.draw()
        except BaseException:
            ledger.free()
            raise
        return learner

    # -- the adapter's numbers

    def draw(self) -> None:
        """A uniform within ± 1 / √columns, as others begin too; B zero, so that nothing changes at first."""
        chance = random.Random(f"{self.settings.seed} adapter").random
        for low, place in self._places():
            bound = low.a.columns**-0.5
            values = array("f", [bound * (2 * chance() - 1) for _ in range(low.rank * low.a.columns)])
            a = low.a.parts[0].codes
            self.device.write(a.buffer, a.offset + 4 * place.row * low.a.columns, values.tobytes())

    def put(self, adapter: AdapterFile) -> None:
        """Takes another adapter's numbers: it must have this one's rank and targets."""
        wanted = {place.tensor for _, place in self._places()}
        if set(adapter.pairs) != wanted or any(pair.rank != self.settings.rank for pair in adapter.pairs.values()):
            raise TrainingError(f"{adapter.name} has another rank or other targets than the settings say.")
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
        """The adapter as it is now."""
        return await self._read("values")

    async def gradients(self) -> AdapterFile:
        """The gradients that have been added up, in the shape of an adapter, divided by the number of targets."""
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

    def _places(self) -> Iterable[tuple[Low, Place]]:
        return ((low, place) for low, _ in self._matrices() for place in low.places)

    async def state(self) -> dict[str, bytes]:
        return await self.flat.read(self.device)

    async def restore(self, state: Mapping[str, bytes]) -> None:
        self.flat.write(self.device, state)

    # -- a step

    async def accumulate(self, packs: Sequence[Pack], targets: int, step: int) -> float:
        """Adds the gradients of Σ nll / targets to those there are; returns Σ nll."""
        self._targets = targets
        return await self._run(packs, step)

    async def evaluate(self, packs: Sequence[Pack]) -> tuple[float, int]:
        """Σ nll and the number of targets, without dropout; changes nothing."""
        return await self._run(packs), sum(pack.targets for pack in packs)

    async def _run(self, packs: Sequence[Pack], step: int | None = None) -> float:
        """Forward, and with a step's number back as well."""
        self.device.write(self.losses.total, 0, bytes(4))
        for number, some in enumerate(passes(packs, self.rows)):
            await self._put_rows(some)
            if self.dropout is not None:
                seed = random.Random(f"{self.settings.seed} dropout {step} {number}").getrandbits(32)
                self.device.write(self.dropout.seed, 0, struct.pack("<I", seed))
            for program in await self._program(bucket(sum(pack.rows for pack in some)), step is not None):
                program.replay()
                await self.device.pace()
                await breathe()
        (total,) = struct.unpack("<f", await self.device.read(self.losses.total))
        return float(total)

    async def _put_rows(self, packs: Sequence[Pack]) -> None:
        rows: list[bytes] = []
        tokens: list[int] = []
        targets = array("I")
        for pack in packs:
            for example in pack:
                rows += [struct.pack("<4I", 1, i, token, i) for i, token in enumerate(example.ids)]
                tokens += example.ids
                targets.extend(NONE if label == IGNORED else label for label in example.labels[1:])
                targets.append(NONE)
        spare = bucket(len(rows)) - len(rows)
        self.device.write(self.row_buffer, 0, b"".join(rows) + struct.pack("<4I", 0, 0, 0, 0) * spare)
        targets.extend([NONE] * spare)
        self.device.write(self.losses.targets, 0, targets.tobytes())
        if self.decoder.raw_rows is not None:
            await self.engine.fetch_rows(tokens, self.decoder)

    async def _program(self, rows: int, back: bool) -> list[Program]:
        """The recorded pass: forward and loss, then each layer's way back by itself, so that no submission is long."""
        if (rows, back) not in self._programs:
            self._programs[rows, back] = [self._finished(tape) for tape in self._record(rows, back)]
            await self.device.confirm()
        return self._programs[rows, back]

    def _finished(self, tape: Tape) -> Program:
        self.tapes.append(tape)
        return tape.program()

    def _record(self, rows: int, back: bool) -> Iterable[Tape]:
        x, matmuls = self.rooms["head x"], self.decoder.products
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
        return Pass(Tape(self.device, label), rows, self.row_buffer, self.cache, rows, self.lows)

    async def update(self, rate: float, step: int) -> float:
        """Clips, moves the numbers, forgets the gradients; returns their norm before. Where that is not finite the
        numbers stay as they were."""
        settings, factor = self.settings, 1 / self._targets
        norm = factor * math.sqrt(await self._sum_of_squares())
        if not math.isfinite(norm):
            self.forget()
            return norm
        beta1, beta2 = map(float, settings.betas)
        params = {
            "rate": float(rate),
            "beta1": beta1,
            "beta2": beta2,
            "eps": float(settings.eps),
            "decay": float(settings.weight_decay),
            "correction1": 1 - beta1 ** (step + 1),
            "correction2": 1 - beta2 ** (step + 1),
            "clip": float(settings.clip),
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
            "share": factor,
        }
        tape = Tape(self.device, "update")
        for page, size in enumerate(self.flat.sizes):
            kinds = ("values", "gradients", "first", "second")
            bindings: dict[str, Binding] = {kind: self.flat.buffers[kind][page] for kind in kinds}
            bindings["norm"] = self.norm
            tape.run("adamw", [GROUPS], bindings, {"count": size // 4, **params})
        tape.program().replay()
        tape.free()
        return norm

    async def _sum_of_squares(self) -> float:
        tape = Tape(self.device, "norm")
        for i, (gradients, size) in enumerate(zip(self.flat.buffers["gradients"], self.flat.sizes, strict=True)):
            bound: dict[str, Binding] = {"gradients": gradients, "shares": self.shares}
            tape.run("sum_squares", [GROUPS], bound, {"count": size // 4}, {"THREADS": THREADS})
            bound = {"shares": self.shares, "norm": self.norm}
            params = {"count": GROUPS, "fresh": i == 0}
            tape.run("sum_squares", [1], bound, params, {"THREADS": THREADS, "JOIN": True})
        tape.program().replay()
        (total,) = struct.unpack("<f", await self.device.read(self.norm))
        tape.free()
        return float(total)

    def forget(self) -> None:
        """Lets the gradients go."""
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
        self._programs.clear()
        self.ledger.free()


def adapter_room(weights: TextWeights, settings: Settings, place: Callable[[int], Span], scales: Buffer) -> Lows:
    """A and B of every target, where `place` puts them."""
    targets = {TARGETS[name] for name in settings.targets}
    return lows_over(weights, settings.rank, targets, place, scales)


def _columns(low: Low, place: Place, j: int) -> slice:
    """A tensor's numbers in row j of b."""
    first = j * low.width + place.first
    return slice(first, first + place.step * (place.count - 1) + 1, place.step)


def measured(device: Device, weights: TextWeights, settings: Settings) -> Measure:
    measure = Measure(min(device.limits.binding, PAGE))
    adapter_room(weights, settings, measure.place, Nothing(0))
    if not measure.pages:
        raise TrainingError(f"this model has none of the targets {', '.join(settings.targets)}.")
    return measure
