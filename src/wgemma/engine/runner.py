"""Runs sequences on a model: uploads rows, fills the KV cache, replays passes.

The cache holds one sequence at a time; the previous one is parked and restored when needed. Rewinding is free as far as
the rings of the sliding layers reach, and goes further with a checkpoint of them.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from wgemma.checks import shown
from wgemma.engine.buckets import TILES, share
from wgemma.engine.engine import Engine
from wgemma.engine.programs import Finish, Programs
from wgemma.engine.request import Cancelled, Hear, PromptProgress, unheard
from wgemma.engine.sampling import Sampler
from wgemma.engine.senses import Senses
from wgemma.engine.sequence import TokenSequence
from wgemma.engine.snapshot import Snapshot
from wgemma.engine.soft import common_start, outside, runs
from wgemma.errors import ContextOverflow, OutOfMemory, SessionError, SettingsError
from wgemma.gpu.device import Buffer
from wgemma.model.cache import Cache
from wgemma.model.passes import PAD, SOFT, Row
from wgemma.model.rows import PAGE, RowBuffer, pages_of
from wgemma.model.tower import Step
from wgemma.sync import breathe

LEAST_FOR_CHECKPOINTS = 64 << 20  # bytes; or a tenth of the weights, if that is more
SHORT = 128  # rows of a prompt per pass on a software adapter, so that it can be stopped soon
MANY_LOGITS = 64 << 20  # bytes of logits on the GPU at once


class Runner:
    """A model's rows, cache, sampler and recorded passes. `senses` provide the soft rows."""

    def __init__(self, engine: Engine, senses: Senses[Buffer] | None = None) -> None:
        self.engine = engine
        self.device = engine.device
        self.senses = senses
        self.ledger = engine.ledger.part()
        self.stopped = False  # another thread closes the model: the next pass is refused
        self.resident: TokenSequence | None = None  # the sequence in the cache
        options, context = engine.options, engine.context
        try:
            self.rows = RowBuffer(self.ledger, engine.most_rows, context, several=False, label="rows")
            self.history = self.ledger.buffer(4 * PAGE * pages_of(context), "history")
            self.sampler = Sampler(self.ledger, engine.config, self.rows, self.history, slots=1)
            self.cache = Cache(self.ledger, engine.config, kv=options.kv, chunk=engine.most_rows, context=context)
        except BaseException:
            self.ledger.free()
            raise
        if not self.ledger.plans:  # every position lies in its own place
            self.rows.put_pages(0, 0, range(pages_of(context)), sliding=False)
        self.programs = Programs(engine, self.rows.buffer, self.cache, self.sampler, self.all_logits)
        self.pass_rows = min(options.chunk, SHORT) if self.device.compact else options.chunk
        self._all_logits: Buffer | None = None

    # -- switching sequences

    async def enter(self, sequence: TokenSequence) -> None:
        """Brings a sequence into the cache; the previous one is parked, or forgotten if memory is short."""
        if self.resident is sequence:
            return
        left = self.resident
        if left is not None and left.ids:
            try:
                left.parked = await self._snapshot(left)
            except OutOfMemory:
                left.reset()
        self.resident = None  # only now: if this was interrupted before, the cache is still the other's
        if sequence.parked is not None:
            await self.cache.make_room(len(sequence.ids))
            sequence.parked.put_back(self.cache)
            sequence.parked.free()
            sequence.parked = None
        self.resident = sequence
        self.put_history(sequence.ids, 0)

    async def fork(self, sequence: TokenSequence) -> TokenSequence:
        """An independent copy of a sequence."""
        await self.enter(sequence)
        twin = TokenSequence(list(sequence.ids), sequence.written, sequence.adapter)
        twin.parked = await self._snapshot(sequence)
        return twin

    async def _snapshot(self, sequence: TokenSequence) -> Snapshot:
        return await Snapshot.take(self.ledger, self.cache, len(sequence.ids), sequence.written)

    # -- rewinding

    def rewind(self, sequence: TokenSequence, position: int) -> int:
        """Rewinds to `position` tokens, or as close below it as rings and checkpoints allow; returns where."""
        window = self.engine.config.window
        position, checkpoint = sequence.reach_back(position, self.cache.ring - window if window else None)
        if checkpoint is not None:
            checkpoint.put_back(self.cache)
            sequence.written = checkpoint.written
        elif position == 0:
            sequence.written = 0
        sequence.cut(position)
        return position

    async def checkpoint(self, sequence: TokenSequence) -> None:
        """Saves a copy of the rings, within the budget: the oldest checkpoint except the first is evicted. Does nothing
        if memory is short."""
        size, kept = sum(size for _, size in self.cache.pieces(0)), sequence.checkpoints
        budget = max(LEAST_FOR_CHECKPOINTS, self.engine.weight_bytes // 10)
        if not 0 < size <= budget or len(sequence.ids) in kept:
            return
        while kept and size * (len(kept) + 1) > budget:
            sequence.drop_checkpoints(list(kept)[min(1, len(kept) - 1) :][:1])
        try:
            taken = await Snapshot.take(self.ledger, self.cache, 0, sequence.written)
        except OutOfMemory:
            return
        kept[len(sequence.ids)] = taken

    # -- computing

    async def prefill(
        self,
        sequence: TokenSequence,
        ids: Sequence[int],
        marks: Sequence[int] = (),
        cancelled: Callable[[], bool] = lambda: False,
        hear: Hear = unheard,
    ) -> bool:
        """Computes all `ids` but the last; takes checkpoints at `marks`. Returns False if it was cancelled; what was
        computed stays. `hear` is told how far the GPU is, except for the last token."""
        check_ids(ids, self.engine.config.vocab_size, self.engine.context, self.senses)
        await self.enter(sequence)
        images = self.images(ids)
        common = outside(common_start(sequence.ids, ids[:-1]), [*self.images(sequence.ids), *images])
        position = sequence.reused = self.rewind(sequence, common)
        kept = {outside(min(mark, len(ids) - 1), images) for mark in marks}
        start, media = position, list(runs(ids))
        hear(PromptProgress("prompt", 0, len(ids) - start))
        for stop in sorted({mark for mark in kept if mark > position} | {len(ids) - 1}):
            while position < stop:
                if cancelled():
                    return False
                count, _ = self.share(ids[position:stop], self.pass_rows)
                try:
                    await self._encode(ids, media, range(position, position + count), cancelled, hear)
                except Cancelled:
                    return False
                done, position = position, position + await self.chunk(sequence, ids[position : position + count])
                self.engine.expect_rows(ids[position : position + self.engine.most_rows])
                await self.device.pace()  # the pass before this one is done
                hear(PromptProgress("prompt", done - start, len(ids) - start))
                await breathe()
            if stop in kept:
                await self.checkpoint(sequence)
        return not cancelled()

    async def _encode(
        self,
        ids: Sequence[int],
        media: Sequence[tuple[int, int]],
        rows: range,
        cancelled: Callable[[], bool],
        hear: Hear,
    ) -> None:
        """Encodes the `media` of `ids` among the next `rows`; raises `Cancelled`."""
        for start, _ in (span for span in media if span[0] < rows.stop and rows.start < span[1]):
            assert self.senses is not None
            image = self.senses.is_image(ids[start])
            alike = [begin for begin, _ in media if self.senses.is_image(ids[begin]) == image]
            begun = PromptProgress("image" if image else "audio", 0, 0, alike.index(start) + 1, len(alike))
            await self.senses.rows(ids[start], self._step(begun, cancelled, hear))

    def _step(self, begun: PromptProgress, cancelled: Callable[[], bool], hear: Hear) -> Step:
        """Follows the encoding of one image or sound."""

        async def step(part: int, parts: int) -> None:
            await self.device.pace()
            hear(replace(begun, done=max(part - 1, 0), total=parts))
            await breathe()
            if cancelled():
                raise Cancelled

        return step

    async def chunk(self, sequence: TokenSequence, ids: Sequence[int], finish: Finish = None) -> int:
        """Computes the first rows of `ids`, as many as fit one pass, after the existing ones; returns how many."""
        position = len(sequence.ids)
        count, bucket = self.share(ids)
        tokens = ids[:count]
        await self.engine.make_room(bucket)
        await self._put_soft(tokens)
        await self.advance(sequence, position + count)
        await self.put_rows(tokens, position, bucket)
        (await self.programs.get(bucket, position + count, finish, sequence.adapter)).replay()
        sequence.ids.extend(tokens)
        return count

    async def advance(self, sequence: TokenSequence, end: int) -> None:
        """Grows the cache to `end` positions, which are written next. Every pass begins with this."""
        if self.stopped:
            raise SessionError("this model was closed in the middle of a call.")
        await self.cache.make_room(end)
        sequence.written = max(sequence.written, end)

    def share(self, ids: Sequence[int], most: int | None = None) -> tuple[int, int]:
        """How many of the waiting rows the next pass takes, and its bucket; `most` holds unless an image needs more."""
        chunk = min(most or self.engine.options.chunk, self.engine.options.chunk)
        return share(len(ids), self.images(ids), chunk, self.engine.most_rows)

    async def put_rows(self, tokens: Sequence[int], position: int, bucket: int) -> None:
        """Uploads the next pass's tokens."""
        config = self.engine.config
        rows: list[tuple[int, int, int, int]] = [
            (1, position + i, token, position + i) for i, token in enumerate(tokens)
        ]
        rows += [Row(0, position, 0, position)] * (bucket - len(rows))
        for start, end in self.images(tokens):
            reach = start + (config.window or 0) if not config.image_windowed else end  # later rows see less
            for i in range(start, end):
                rows[i] = Row(1 + max(i + 1 - reach, 0), position + i, tokens[i], position + end - 1)
        self.rows.put_rows(rows)
        self.put_history(tokens, position)
        if self.engine.fetches_rows:
            await self.engine.fetch_rows(tokens)

    def put_history(self, tokens: Sequence[int], position: int) -> None:
        """Uploads the history for the penalties; soft rows count as PAD."""
        known = (PAD if token >= SOFT else token for token in tokens)
        if tokens:
            self.device.write(self.history, 4 * position, struct.pack(f"<{len(tokens)}I", *known))

    async def _put_soft(self, tokens: Sequence[int]) -> None:
        for start, end in runs(tokens):
            assert self.senses is not None
            rows, first = await self.senses.rows(tokens[start])
            self.engine.decoder.put_soft(rows, first, start, end - start)

    def images(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Spans to compute together: the images, as (start, end), if the model's image rows see each other."""
        if self.engine.config.image_attention != "both" or self.senses is None:
            return []
        return [(start, end) for start, end in runs(ids) if self.senses.is_image(ids[start])]

    @property
    def logit_rows(self) -> int:
        """How many rows of logits fit at once: one of the bucket sizes."""
        most = max(MANY_LOGITS // (4 * self.engine.config.vocab_size), 1)
        return max(size for size in (1, *TILES) if size <= min(most, self.engine.options.chunk))

    def all_logits(self) -> Buffer:
        """The buffer for the logits of `logit_rows` rows, allocated on first use."""
        if self._all_logits is None:
            size = 4 * self.logit_rows * self.engine.config.vocab_size
            self._all_logits = self.ledger.buffer(size, "logits of all rows")
        return self._all_logits

    def free(self) -> None:
        """Frees everything, including the snapshots of every sequence."""
        self.programs.free()
        self.ledger.free()


def check_ids(ids: Sequence[int], vocab: int, context: int, senses: Senses[Any] | None = None) -> None:
    """Raises an error for a prompt that cannot be computed."""
    if not ids:
        raise SettingsError("the prompt is empty; it needs at least one token.")
    for i in ids:
        if not isinstance(i, int) or not (0 <= i < vocab or (senses is not None and senses.holds(i))):
            raise SettingsError(f"{shown(i)} is not a token id; this model has 0 to {vocab - 1}.")
    if len(ids) > context:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens; the context holds {context}. "
            "Shorten it, or load the model with a larger context if it allows one."
        )
