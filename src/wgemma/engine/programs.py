"""A model's recorded passes: each shape is recorded once and replayed for every sequence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from wgemma.engine.engine import Engine
from wgemma.engine.sampling import Recipe
from wgemma.engine.slots import Slots
from wgemma.gpu.device import Buffer, Program
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Lows
from wgemma.model.cache import Arena, PackedCache
from wgemma.model.passes import Pass
from wgemma.model.rows import RowBuffer

FIRST_DEPTH = 256


@dataclass(frozen=True, slots=True)
class Again:
    """No pass at all: draws forbidden tokens of the pass before once more, by its recipe."""

    recipe: Recipe


# How a pass ends: by sampling a token for each row, with the logits of all rows, settled before them, or with its keys
# and values. "packed": its rows are whole sequences, and it ends settled.
Finish: TypeAlias = Recipe | Again | Literal["logits", "settled", "packed"] | None


class Shape(NamedTuple):
    """The key of a recording. Its rows belong to one sequence, or if it samples each to its own."""

    rows: int
    depth: int
    finish: Finish
    adapted: int  # which adapters it records; 0: none
    by_row: bool  # each row has its own setting of them
    state: tuple[int, int, int]  # arena, scratch rows and slots; growth invalidates earlier recordings


class Programs:
    """Records passes over one arena: of a prompt, whose tokens `prompt` lists, and of all slots."""

    def __init__(
        self,
        engine: Engine,
        prompt: RowBuffer,
        arena: Arena,
        slots: Slots,
        logits: Callable[[], Buffer],
        packed: Callable[[], PackedCache],
    ) -> None:
        self.engine = engine
        self.prompt = prompt
        self.arena = arena
        self.slots = slots
        self.logits = logits  # where the logits of all rows go
        self.packed = packed  # where the keys and values of whole sequences go
        self.recorded: dict[Shape, tuple[Tape, Program]] = {}

    def shape(self, rows: int, end: int, finish: Finish, lows: Lows | None) -> Shape:
        """That of a pass of `rows` rows over a history of up to `end` positions."""
        state = self.arena.version, self.engine.scratch.rows, self.slots.count
        adapted = self.engine.adapted if lows else 0
        return Shape(rows, depth_of(end), finish, adapted, bool(lows and lows.rows), state)

    async def get(self, rows: int, end: int, finish: Finish, lows: Lows | None) -> Program:
        """A pass of `rows` rows over a history of up to `end` positions."""
        engine, shape = self.engine, self.shape(rows, end, finish, lows)
        if shape not in self.recorded:
            self._forget_useless(shape.state)
            tape = Tape(engine.device, f"{rows} rows at {shape.depth}")
            self._record(tape, shape, lows)
            program = tape.program()
            await engine.device.confirm()
            self.recorded[shape] = tape, program
        return self.recorded[shape][1]

    async def again(self, rows: int, recipe: Recipe) -> Program:
        """After a pass that samples for `rows` rows by this recipe: draws forbidden tokens once more."""
        return await self.get(rows, 0, Again(recipe), None)

    def _record(self, tape: Tape, shape: Shape, lows: Lows | None) -> None:
        decoder, finish = self.engine.decoder, shape.finish
        if isinstance(finish, Again):
            self.slots.sampler.history = self.arena.history
            self.slots.sampler.record_again(tape, finish.recipe, shape.rows)
            return
        source = self.slots.rows if isinstance(finish, Recipe) else self.prompt
        passing = Pass(tape, shape.rows, source.buffer, source.tables, self.arena, shape.depth, lows)
        if finish == "packed":
            passing = Pass(tape, shape.rows, source.buffer, None, self.packed(), shape.rows, lows)
        if finish is None:
            decoder.fill(passing)
            return
        stream = decoder.record(passing)
        if finish == "logits":
            decoder.head(passing, stream, self.logits())
        elif finish == "settled" or finish == "packed":
            decoder.settle(passing, stream)
        else:
            sampler = self.slots.sampler
            sampler.history = self.arena.history  # growing replaces it
            decoder.head(passing, stream, sampler.logits, sampler.stride)
            sampler.record(tape, finish, shape.depth, shape.rows)

    def _forget_useless(self, state: tuple[int, int, int]) -> None:
        useful = (0, self.engine.adapted)
        for old in [shape for shape in self.recorded if shape.state != state or shape.adapted not in useful]:
            self.recorded.pop(old)[0].free()

    def decoding(self, positions: int, *, adapted: bool) -> tuple[Tape, Program]:
        """The recorded step that decodes one token after this many positions, for benchmarks."""
        wanted = self.engine.adapted if adapted else 0
        steps = [shape for shape in self.recorded if shape.rows == 1 and isinstance(shape.finish, Recipe)]
        deep = [shape for shape in steps if shape.depth >= positions and shape.adapted == wanted]
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
