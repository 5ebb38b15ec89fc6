"""A model's recorded passes: each shape is recorded once and replayed for every sequence."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from wgemma.engine.adapting import Setting
from wgemma.engine.engine import Engine
from wgemma.engine.sampling import Recipe, Sampler
from wgemma.gpu.device import Buffer, Program
from wgemma.gpu.tape import Tape
from wgemma.model.cache import Cache
from wgemma.model.passes import Pass

FIRST_DEPTH = 256

# How a pass ends: by sampling a token after each row, with the logits of all rows, settled before them, or with its
# keys and values.
Finish: TypeAlias = Recipe | Literal["logits", "settled"] | None


class Shape(NamedTuple):
    """The key of a recording."""

    rows: int
    depth: int
    finish: Finish
    adapted: int  # which adapters it records; 0: none
    state: tuple[int, int]  # cache segments and scratch rows; growth invalidates earlier recordings


class Programs:
    """Records passes over one cache; `rows` lists a pass's tokens."""

    def __init__(
        self, engine: Engine, rows: Buffer, cache: Cache, sampler: Sampler, logits: Callable[[], Buffer]
    ) -> None:
        self.engine = engine
        self.rows = rows
        self.cache = cache
        self.sampler = sampler
        self.logits = logits  # where the logits of all rows go
        self.recorded: dict[Shape, tuple[Tape, Program]] = {}

    async def get(self, rows: int, end: int, finish: Finish, adapter: Setting) -> Program:
        """A pass of `rows` rows over a history of `end` positions."""
        engine, lows = self.engine, self.engine.at_work(adapter)
        engine.weigh(adapter)
        state = sum(len(segments) for segments in self.cache.segments.values()), engine.scratch.rows
        shape = Shape(rows, depth_of(end), finish, engine.adapted if lows else 0, state)
        if shape not in self.recorded:
            self._forget_useless(state)
            tape = Tape(engine.device, f"{rows} rows at {shape.depth}")
            self._record(Pass(tape, rows, self.rows, self.cache, shape.depth, lows), finish)
            program = tape.program()
            await engine.device.confirm()
            self.recorded[shape] = tape, program
        return self.recorded[shape][1]

    def _record(self, passing: Pass, finish: Finish) -> None:
        decoder = self.engine.decoder
        if finish is None:
            decoder.fill(passing)
            return
        stream = decoder.record(passing)
        if finish == "logits":
            decoder.head(passing, stream, self.logits())
        elif finish == "settled":
            decoder.settle(passing, stream)
        else:
            decoder.head(passing, stream, self.sampler.logits, self.sampler.stride)
            self.sampler.record(passing.tape, finish, passing.depth, passing.rows)

    def _forget_useless(self, state: tuple[int, int]) -> None:
        useful = (0, self.engine.adapted)
        for old in [shape for shape in self.recorded if shape.state != state or shape.adapted not in useful]:
            self.recorded.pop(old)[0].free()

    def decoding(self, positions: int, adapter: Setting) -> tuple[Tape, Program]:
        """The recorded step that decodes one token after this many positions, for benchmarks."""
        adapted = self.engine.adapted if adapter.scales else 0
        steps = [shape for shape in self.recorded if shape.rows == 1 and isinstance(shape.finish, Recipe)]
        deep = [shape for shape in steps if shape.depth >= positions and shape.adapted == adapted]
        return self.recorded[min(deep, key=lambda shape: shape.depth)]

    def free(self) -> None:
        for tape, _ in self.recorded.values():
            tape.free()
        self.recorded.clear()


def depth_of(positions: int) -> int:
    """The history bucket of a recording: powers of two from 256."""
    depth = FIRST_DEPTH
    while depth < positions:
        depth *= 2
    return depth
