"""One sequence of tokens: what of it is computed already, and how to go on from there.

The GPU samples and feeds itself; the host stays a step or two behind and only counts positions. Going back is setting a
number, as far as the rings of the sliding layers reach, and further with a checkpoint of them.
"""

import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.buckets import TILES, share
from wgemma.engine.engine import Engine
from wgemma.engine.sampling import REPORT, RESULT_BYTES, RESULTS, Recipe, Sampler, Sampling, alternatives, outcome
from wgemma.engine.soft import common_start, outside, runs
from wgemma.errors import BadLogits, ContextOverflow, DeviceError, OutOfMemory, SettingsError
from wgemma.gpu.device import Buffer, Program, Reading
from wgemma.gpu.tape import Tape
from wgemma.model.cache import Cache
from wgemma.model.decoder import PAD, SOFT, Pass
from wgemma.sync import breathe

if TYPE_CHECKING:
    from wgemma.engine.senses import Senses

AHEAD = 2  # steps in flight
QUICK = 0.01  # seconds: where steps take less, there may be more of them, as the device wants it
FIRST_DEPTH = 256
MANY_LOGITS = 64 << 20  # bytes of logits to have on the GPU at once

# How a pass ends: with a choice, with the logits of all rows, ready for them, or not at all.
Finish: TypeAlias = Recipe | Literal["logits", "settled"] | None


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; `logprobs` are (token, log-probability): its own, then the most likely ones."""

    id: int
    logprobs: list[tuple[int, float]] = field(default_factory=list)


@dataclass(slots=True)
class Checkpoint:
    """A copy of the sliding layers' rings when `position` tokens had been computed."""

    position: int
    high: int  # how far positions had been written by then: what lies a ring below is lost in the copy too
    rings: list[tuple[Buffer, Buffer]]


class Session:
    """A sequence on the GPU. `ids` are the tokens whose keys and values are there."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ids: list[int] = []
        self.reused = 0  # tokens of the last prompt that were there already
        self.checkpoints: list[Checkpoint] = []
        self.adapter = BARE  # what keys and values were computed with
        self._high = 0  # positions ever written since the rings were whole: what lies a ring below is gone
        self._allocate()

    def _allocate(self) -> None:
        engine, device = self.engine, self.engine.device
        options = engine.options
        self.rows = device.buffer(16 * engine.most_rows, "rows")
        self.history = device.buffer(4 * (engine.context + 1), "history")
        self.sampler = Sampler(device, engine.config, self.rows, self.history)
        try:
            self.cache = Cache(device, engine.config, kv=options.kv, chunk=engine.most_rows, context=engine.context)
        except OutOfMemory:
            self.sampler.free()
            device.free(self.rows)
            device.free(self.history)
            raise
        self._programs: dict[tuple[int, int, Finish, int, tuple[int, int]], tuple[Tape, Program]] = {}
        self._all_logits: Buffer | None = None

    def use(self, setting: Setting) -> None:
        """From here on with these adapters; what was computed with others is forgotten."""
        if setting.key != self.adapter.key:
            self.reset()
        self.adapter = setting

    # -- going back

    def rewind(self, position: int) -> int:
        """Goes back to `position` tokens, or as near below it as the rings and checkpoints allow; says where."""
        position = min(position, len(self.ids))
        ring_reach = self.cache.ring - (self.engine.config.window or 0)
        if self.engine.config.window and self._high - position > ring_reach:
            position = self._restore(position)
        del self.ids[position:]
        for checkpoint in [c for c in self.checkpoints if c.position > position]:
            self._drop(checkpoint)
        return position

    def _restore(self, position: int) -> int:
        usable = [c for c in self.checkpoints if c.position <= position]
        if not usable:
            self._high = 0
            return 0
        best = max(usable, key=lambda c: c.position)
        tape = Tape(self.engine.device, "restore")
        for (keys, values), segment in zip(best.rings, self._rings(), strict=True):
            tape.copy(keys, 0, segment[0], 0, keys.size)
            tape.copy(values, 0, segment[1], 0, values.size)
        tape.program().replay()
        self._high = best.high
        return best.position

    def _rings(self) -> list[tuple[Buffer, Buffer]]:
        sliding = [layer for layer in self.cache.owners if layer.sliding]
        segments = [self.cache.segments[layer.index][0] for layer in sliding]
        return [(segment.keys, segment.values) for segment in segments]

    async def checkpoint(self) -> None:
        """Keeps a copy of the rings as they are now, within the budget: the oldest but the first gives way. Without
        memory for it there is none."""
        rings = self._rings()
        if not rings or any(c.position == len(self.ids) for c in self.checkpoints):
            return
        size = sum(keys.size + values.size for keys, values in rings)
        budget = max(64 << 20, sum(buffer.size for buffer in self.engine.weights.buffers) // 10)
        if size > budget:
            return
        while self.checkpoints and size * (len(self.checkpoints) + 1) > budget:
            self._drop(self.checkpoints[1 if len(self.checkpoints) > 1 else 0])
        device = self.engine.device
        made: list[Buffer] = []
        try:
            made.extend(device.buffer(half.size, "checkpoint") for ring in rings for half in ring)
            await device.confirm()
        except OutOfMemory:
            for buffer in made:
                device.free(buffer)
            return
        copies = list(zip(made[::2], made[1::2], strict=True))
        tape = Tape(device, "checkpoint")
        for (keys, values), (key_copy, value_copy) in zip(rings, copies, strict=True):
            tape.copy(keys, 0, key_copy, 0, keys.size)
            tape.copy(values, 0, value_copy, 0, values.size)
        tape.program().replay()
        self.checkpoints.append(Checkpoint(len(self.ids), self._high, copies))

    def _drop(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.remove(checkpoint)
        for keys, values in checkpoint.rings:
            self.engine.device.free(keys)
            self.engine.device.free(values)

    @property
    def written(self) -> int:
        """How far positions were ever written since the rings were whole."""
        return self._high

    def resume(self, ids: Sequence[int], written: int) -> None:
        """Goes on from a cache that was filled from outside with the keys and values of `ids`."""
        self.ids = list(ids)
        self._high = max(written, len(ids))
        if ids:
            self._put_history(ids, 0)

    def fork(self) -> "Session":
        """A second session that shares nothing but the past."""
        twin = Session(self.engine)
        try:
            twin.cache.grow(min(self.cache.capacity, self.cache.context))
            tape = Tape(self.engine.device, "fork")
            for index, segments in self.cache.segments.items():
                for ours, theirs in zip(segments, twin.cache.segments[index], strict=True):
                    tape.copy(ours.keys, 0, theirs.keys, 0, ours.keys.size)
                    tape.copy(ours.values, 0, theirs.values, 0, ours.values.size)
            tape.program().replay()
        except BaseException:
            twin.free()
            raise
        twin.adapter = self.adapter
        twin.resume(self.ids, self._high)
        return twin

    def reset(self) -> None:
        """Forgets everything."""
        self.ids.clear()
        self._high = 0
        for checkpoint in list(self.checkpoints):
            self._drop(checkpoint)

    # -- computing

    async def prefill(
        self, ids: Sequence[int], marks: Sequence[int] = (), cancelled: Callable[[], bool] = lambda: False
    ) -> bool:
        """Computes the sequence `ids` up to but without its last token; checkpoints are taken at `marks`. False when it
        was cancelled before the end; what is computed stays."""
        check_ids(ids, self.engine.config.vocab_size, self.engine.context, self.engine.senses)
        images = self._images(ids)
        common = outside(common_start(self.ids, ids[:-1]), [*self._images(self.ids), *images])
        self.reused = self.rewind(common)
        position = self.reused
        kept = {outside(min(mark, len(ids) - 1), images) for mark in marks}
        for stop in sorted({mark for mark in kept if mark > position} | {len(ids) - 1}):
            while position < stop:
                if cancelled():
                    return False
                count = await self._chunk(ids[position:stop], position)
                position += count
                self.engine.expect_rows(ids[position : position + self.engine.most_rows])
                await self.engine.device.pace()
                await breathe()
            if stop in kept:
                await self.checkpoint()
        return not cancelled()

    async def _chunk(self, ids: Sequence[int], position: int, finish: Finish = None) -> int:
        """Computes the first rows of `ids`, as many as one pass takes; `finish` ends the pass with more commands."""
        count, bucket = self._share(ids)
        tokens = ids[:count]
        end = position + count
        await self.engine.decoder.make_room(bucket)
        await self._put_soft(tokens)
        await self.cache.make_room(end)
        self._high = max(self._high, end)
        await self._put_rows(tokens, position, bucket)
        (await self._program(bucket, _depth(end), finish)).replay()
        self.ids.extend(tokens)
        return count

    def _share(self, ids: Sequence[int]) -> tuple[int, int]:
        """How many of the waiting rows the next pass takes, and for how many it is recorded."""
        return share(len(ids), self._images(ids), self.engine.options.chunk, self.engine.most_rows)

    async def _put_rows(self, tokens: Sequence[int], position: int, bucket: int) -> None:
        device, config = self.engine.device, self.engine.config
        rows = [(1, position + i, token, position + i) for i, token in enumerate(tokens)]
        rows += [(0, position, 0, position)] * (bucket - len(rows))
        for start, end in self._images(tokens):
            reach = start + (config.window or 0) if not config.image_windowed else end  # rows from here on see less
            for i in range(start, end):
                rows[i] = (1 + max(i + 1 - reach, 0), position + i, tokens[i], position + end - 1)
        device.write(self.rows, 0, b"".join(struct.pack("<4I", *row) for row in rows))
        self._put_history(tokens, position)
        device.write(self.sampler.picked, 0, struct.pack("<I", len(tokens) - 1))
        if self.engine.fetches_rows:
            await self.engine.fetch_rows(tokens)

    def _put_history(self, tokens: Sequence[int], position: int) -> None:
        """The past, for penalties, which know tokens only."""
        known = (PAD if token >= SOFT else token for token in tokens)
        self.engine.device.write(self.history, 4 * position, struct.pack(f"<{len(tokens)}I", *known))

    async def _put_soft(self, tokens: Sequence[int]) -> None:
        """Soft rows go to where the pass begins, as they are."""
        senses, h = self.engine.senses, self.engine.decoder.scratch["h"]
        row_bytes = 4 * self.engine.config.width
        for start, end in runs(tokens):
            assert senses is not None
            rows, first = await senses.rows(tokens[start])
            tape = Tape(self.engine.device, "soft rows")
            tape.copy(rows, first * row_bytes, h, start * row_bytes, (end - start) * row_bytes)
            tape.program().replay()

    def _images(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """What must be computed together: the images, as (start, end), of a model whose image rows see each other."""
        if self.engine.config.image_attention != "both" or self.engine.senses is None:
            return []
        return [(start, end) for start, end in runs(ids) if self.engine.senses.is_image(ids[start])]

    async def _program(self, rows: int, depth: int, finish: Finish) -> Program:
        """The recorded pass of this shape; a cache that grew, another scratch or other adapters make old recordings
        useless."""
        engine, decoder = self.engine, self.engine.decoder
        lows = engine.lows if self.adapter.scales else None
        engine.weigh(self.adapter)
        state = sum(len(s) for s in self.cache.segments.values()), decoder.scratch.rows
        key = (rows, depth, finish, engine.adapted if lows else 0, state)
        if key not in self._programs:
            for old in [k for k in self._programs if k[-1] != state or k[3] not in (0, engine.adapted)]:
                self._programs.pop(old)[0].free()
            tape = Tape(self.engine.device, f"{rows} rows at {depth}")
            passing = Pass(tape, rows, self.rows, self.cache, depth, lows)
            stream = decoder.record(passing)
            if finish == "logits":
                decoder.head_of_all(passing, stream, self._room_for_logits())
            elif finish == "settled":
                decoder.settle(passing, stream)
            elif finish is not None:
                decoder.head(passing, stream, self.sampler.picked, self.sampler.logits)
                self.sampler.record(tape, finish, depth)
            program = tape.program()
            await self.engine.device.confirm()
            self._programs[key] = tape, program
        return self._programs[key][1]

    def decoding(self, positions: int) -> tuple[Tape, Program]:
        """The recorded step that decodes one token after so many positions, for measurements."""
        adapted = self.engine.adapted if self.adapter.scales else 0
        steps = [key for key in self._programs if key[0] == 1 and isinstance(key[2], Recipe) and key[1] >= positions]
        steps = [key for key in steps if key[3] == adapted]
        return self._programs[min(steps, key=lambda key: key[1])]

    # -- generating

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        marks: Sequence[int] = (),
        cancelled: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[Token, None]:
        """Tokens that follow `ids`, until the context is full or the caller has enough; none when it is cancelled
        before the prompt is computed."""
        if ids and isinstance(ids[-1], int) and ids[-1] >= SOFT:
            raise SettingsError("the prompt ends in an image or a sound: the token that closes it must follow.")
        if not await self.prefill(ids, marks, cancelled):
            return
        room = min(max_tokens, self.engine.context - len(ids))
        if room <= 0:
            return
        finish = self.sampler.begin(sampling, self.engine.context)
        ahead = 1 if self.engine.fetches_rows else AHEAD
        start, last = len(ids), perf_counter()
        waiting: deque[tuple[Reading, Reading | None]] = deque()
        submitted, known = 0, [ids[-1]]  # known[i] is the token at position start − 1 + i
        try:
            while len(known) <= room:
                while submitted < room and len(waiting) < ahead:
                    await self._step(known, start, submitted, finish)
                    waiting.append(self._read_results(sampling))
                    submitted += 1
                token = await self._receive(waiting.popleft(), start + len(known) - 1, sampling)
                known.append(token.id)
                took, last = perf_counter() - last, perf_counter()
                if ahead > 1:
                    ahead = self.engine.device.ahead if took < QUICK else AHEAD
                # The step after this token's was submitted already if its keys are on their way.
                fed = min(submitted - 1, len(known) - 1)
                self.ids[start:] = known[1 : fed + 1]
                yield token
                await breathe()
        finally:
            # What is still on its way is waited for, so that its staging memory can be used again.
            with suppress(DeviceError):
                for results, report in waiting:
                    await results.bytes()
                    if report is not None:
                        await report.bytes()

    async def _step(self, known: list[int], start: int, submitted: int, finish: Recipe) -> None:
        """Submits the pass whose input is the token at start − 1 + submitted."""
        position = start - 1 + submitted
        if submitted == 0:
            await self._chunk(known, position, finish)
            return
        await self.cache.make_room(position + 1)
        self._high = max(self._high, position + 1)
        if self.engine.fetches_rows:
            await self.engine.fetch_rows([known[submitted]])
        (await self._program(1, _depth(position + 1), finish)).replay()

    def _read_results(self, sampling: Sampling) -> tuple[Reading, Reading | None]:
        device = self.engine.device
        results = device.read_later(self.sampler.results, 0, RESULTS * RESULT_BYTES)
        if sampling.logprobs is None:
            return results, None
        return results, device.read_later(self.sampler.report, 0, RESULTS * REPORT * 8)

    async def _receive(self, readings: tuple[Reading, Reading | None], position: int, sampling: Sampling) -> Token:
        result = outcome(await readings[0].bytes(), position)
        if result.bad:
            raise BadLogits(await self._blame(position - 1))
        if readings[1] is None or sampling.logprobs is None:
            return Token(result.token)
        return Token(result.token, alternatives(await readings[1].bytes(), position, sampling.logprobs))

    # -- logits

    async def logits(self, ids: Sequence[int], chunks: Sequence[int] = ()) -> AsyncGenerator[bytes, None]:
        """The logits of every position, f32, some rows at a time; the sequence is computed from its start."""
        check_ids(ids, self.engine.config.vocab_size, self.engine.context, self.engine.senses)
        self.reset()
        if any(not isinstance(size, int) or size < 1 for size in chunks):
            raise SettingsError(f"chunks are {list(chunks)!r}; each must be at least 1.")
        position, sizes, images = 0, list(chunks), self._images(ids)
        while position < len(ids):
            size = min(sizes.pop(0) if sizes else self._logit_rows(), self._logit_rows())
            end = outside(min(position + size, len(ids)), images)
            if end == position:  # an image larger than that
                end = next(end for start, end in images if start == position)
            finish: Finish = "logits" if self._share(ids[position:end])[1] <= self._logit_rows() else "settled"
            count = await self._chunk(ids[position:end], position, finish)
            async for part in self._read_logits(count, finish):
                yield part
            position += count
            await breathe()

    async def _read_logits(self, count: int, finish: Finish) -> AsyncGenerator[bytes, None]:
        """The logits of the last pass; those of a settled one are computed now, as many as there is room for."""
        room, row_bytes = self._room_for_logits(), 4 * self.engine.config.vocab_size
        if finish == "logits":
            yield await self.engine.device.read(room, 0, count * row_bytes)
            return
        for first in range(0, count, self._logit_rows()):
            rows = min(self._logit_rows(), count - first)
            tape = Tape(self.engine.device, "some logits")
            lows = self.engine.lows if self.adapter.scales else None
            self.engine.decoder.head_of_some(tape, first, rows, room, lows)
            tape.program().replay()
            yield await self.engine.device.read(room, 0, rows * row_bytes)
            tape.free()

    def _logit_rows(self) -> int:
        """How many rows' logits fit at once: one of the bucket sizes."""
        most = max(MANY_LOGITS // (4 * self.engine.config.vocab_size), 1)
        return max(size for size in (1, *TILES) if size <= min(most, self.engine.options.chunk))

    def _room_for_logits(self) -> Buffer:
        if self._all_logits is None:
            size = 4 * self._logit_rows() * self.engine.config.vocab_size
            self._all_logits = self.engine.device.buffer(size, "logits of all rows")
        return self._all_logits

    async def _blame(self, position: int) -> str:
        """Which layer first computes something that is not finite at this position."""
        engine, lows = self.engine, self.engine.lows if self.adapter.scales else None
        (token,) = struct.unpack("<I", await engine.device.read(self.history, 4 * position, 4))
        await self._put_rows([token], position, 1)
        names = ["the embedding", *(f"layer {i}" for i in range(len(engine.weights.layers)))]
        for count, name in enumerate(names):
            tape = Tape(engine.device, "blame")
            passing = Pass(tape, 1, self.rows, self.cache, _depth(position + 1), lows)
            stream = engine.decoder.record(passing, layers=count)
            tape.program().replay()
            parts = [await engine.device.read(b, 0, 4 * engine.config.width) for b in (stream.h, stream.pending)]
            tape.free()
            for data in parts:
                if not _finite(data):
                    whose = "its weights or the adapter's" if lows else "its weights"
                    return f"the model computed NaN or Inf in {name} at position {position}: {whose} are damaged."
        return f"the logits hold NaN or Inf at position {position}: the output matrix is damaged."

    def free(self) -> None:
        self.reset()
        device = self.engine.device
        for tape, _ in self._programs.values():
            tape.free()
        self._programs.clear()
        self.cache.free()
        self.sampler.free()
        for buffer in (self.rows, self.history, *([self._all_logits] if self._all_logits else [])):
            device.free(buffer)


def check_ids(ids: Sequence[int], vocab: int, context: int, senses: "Senses[Any] | None" = None) -> None:
    """Refuses a prompt that cannot be computed."""
    if not ids:
        raise SettingsError("the prompt is empty: give at least one token.")
    for i in ids:
        if not isinstance(i, int) or not (0 <= i < vocab or (senses is not None and senses.holds(i))):
            raise SettingsError(f"{i!r} is not a token id; this model has 0 to {vocab - 1}.")
    if len(ids) > context:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens; the context holds {context}. "
            "Shorten it, or load the model with a larger context if it allows one."
        )


def _depth(positions: int) -> int:
    """The bucket of history a recording is made for: doubling from 256."""
    depth = FIRST_DEPTH
    while depth < positions:
        depth *= 2
    return depth


def _finite(data: bytes) -> bool:
    words = memoryview(data).cast("I")
    return all(word & 0x7F800000 != 0x7F800000 for word in words)
