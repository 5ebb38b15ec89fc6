"""Runs sequences on a model: uploads rows and page tables, replays passes, reads prompts."""

import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from wgemma.checks import shown
from wgemma.engine.adapting import Setting
from wgemma.engine.buckets import TILES, share
from wgemma.engine.engine import Engine
from wgemma.engine.paging import Paging
from wgemma.engine.programs import Finish, Programs
from wgemma.engine.request import PromptProgress
from wgemma.engine.senses import Senses
from wgemma.engine.sequence import TokenSequence
from wgemma.engine.slots import Slots, put_tables
from wgemma.engine.soft import outside, runs
from wgemma.errors import ContextOverflow, SessionError, SettingsError
from wgemma.gpu.device import Buffer
from wgemma.model.adapters import Lows
from wgemma.model.cache import PackedCache
from wgemma.model.passes import PAD, SOFT
from wgemma.model.rows import PAGE, Row, RowBuffer
from wgemma.model.tower import Step

SHORT = 128  # rows of a prompt per pass on a software adapter, so that it can be stopped soon
MANY_LOGITS = 64 << 20  # bytes of logits on the GPU at once

Watch: TypeAlias = Callable[[PromptProgress], Awaitable[None]]


async def unwatched(progress: PromptProgress) -> None:
    """Nobody follows how an image or a sound is encoded."""


class Runner:
    """A model's pages, slots and recorded passes. `senses` provide the soft rows."""

    def __init__(self, engine: Engine, senses: Senses[Buffer] | None = None) -> None:
        self.engine = engine
        self.device = engine.device
        self.senses = senses
        self.ledger = engine.ledger.part()
        self.stopped = False  # another thread closes the model: the next pass is refused
        context = engine.context
        try:
            self.paging = Paging.of(self.ledger, engine)
            self.prompt = RowBuffer(self.ledger, engine.most_rows, context, several=False, label="rows of a prompt")
            self.slots = Slots(self.ledger, engine.config, self.paging, 1, context)
        except BaseException:
            self.ledger.free()
            raise
        self.programs = Programs(engine, self.prompt, self.paging.arena, self.slots, self.all_logits, self.packed)
        self.pass_rows = min(engine.options.chunk, SHORT) if self.device.compact else engine.options.chunk
        self._all_logits: Buffer | None = None
        self._packed: PackedCache | None = None

    async def widen(self, count: int) -> None:
        """Makes room for `count` sequences at the same time, which must all be put into their slots again."""
        wider = Slots(self.ledger, self.engine.config, self.paging, count, self.engine.context)
        try:
            await self.engine.make_settings(count)
            await self.device.confirm()
        except BaseException:
            wider.free()
            raise
        self.slots.free()
        self.slots = self.programs.slots = wider

    # -- prompts

    async def prefill(
        self,
        sequence: TokenSequence,
        ids: Sequence[int],
        marks: Sequence[int] = (),
        most: Callable[[], int] | None = None,
        watch: Watch = unwatched,
    ) -> AsyncGenerator[PromptProgress, None]:
        """Computes all `ids` but the last after those that are there, in passes of up to `most` rows; after each it
        yields how far the GPU is. Others can resume at `marks`. Raises what `watch` raises."""
        images, media = self.images(ids), list(runs(ids))
        kept = {outside(min(mark, len(ids) - 1), images) for mark in marks}
        position = start = done = len(sequence.ids)
        for stop in sorted({mark for mark in kept if mark > position} | {len(ids) - 1}):
            while position < stop:
                count, bucket = self.share(ids[position:stop], most() if most else self.pass_rows)
                await self._encode(ids, media, range(position, position + count), watch)
                for prepare in (self._reach, self._record):  # either may take time: others go on in between
                    if await prepare(sequence, bucket, position + count):
                        yield PromptProgress("prompt", done - start, len(ids) - start)
                done, position = position, position + await self.chunk(sequence, ids[position : position + count])
                self.engine.expect_rows(ids[position : position + self.engine.most_rows])
                await self.device.pace()  # the pass before this one is done
                yield PromptProgress("prompt", done - start, len(ids) - start)
            if stop in kept:
                self.paging.mark(sequence)
        self.paging.mark(sequence)  # the same prompt may come again

    async def _reach(self, sequence: TokenSequence, bucket: int, end: int) -> bool:
        """Makes room for a pass of a prompt; returns whether memory grew, so that passes have to be recorded again."""
        before = self.programs.shape(bucket, end, None, None)
        await self.engine.make_room(bucket)
        await self.paging.reach(sequence, end)
        return self.programs.shape(bucket, end, None, None) != before

    async def _record(self, sequence: TokenSequence, bucket: int, end: int) -> bool:
        """Records the pass of a prompt; returns False if that was done before."""
        lows = self.engine.at_work(sequence.adapter)
        known = self.programs.shape(bucket, end, None, lows) in self.programs.recorded
        if not known:
            await self.programs.get(bucket, end, None, lows)
        return not known

    async def _encode(self, ids: Sequence[int], media: Sequence[tuple[int, int]], rows: range, watch: Watch) -> None:
        """Encodes the `media` of `ids` among the next `rows`."""
        for start, _ in (span for span in media if span[0] < rows.stop and rows.start < span[1]):
            assert self.senses is not None
            image = self.senses.is_image(ids[start])
            alike = [begin for begin, _ in media if self.senses.is_image(ids[begin]) == image]
            begun = PromptProgress("image" if image else "audio", 0, 0, alike.index(start) + 1, len(alike))
            await self.senses.rows(ids[start], self._step(begun, watch))

    def _step(self, begun: PromptProgress, watch: Watch) -> Step:
        """Follows the encoding of one image or sound."""

        async def step(part: int, parts: int) -> None:
            await self.device.pace()
            await watch(replace(begun, done=max(part - 1, 0), total=parts))

        return step

    async def extend(self, sequence: TokenSequence, ids: Sequence[int], most: int) -> None:
        """Computes up to `most` of `ids`, except for the last, after those that are there."""
        position = len(sequence.ids)
        count, _ = self.share(ids[position:-1], most)
        await self.chunk(sequence, ids[position : position + count])
        await self.device.pace()

    async def chunk(self, sequence: TokenSequence, ids: Sequence[int], finish: Finish = None) -> int:
        """Computes the first rows of `ids`, as many as fit one pass, after the existing ones; returns how many."""
        position = len(sequence.ids)
        count, bucket = self.share(ids)
        tokens = ids[:count]
        await self.engine.make_room(bucket)
        await self._put_soft(tokens)
        self.check()
        await self.paging.reach(sequence, position + count)
        await self.put_rows(sequence, tokens, position, bucket)
        lows = self.engine.at_work(sequence.adapter)
        self.engine.weigh(sequence.adapter)
        (await self.programs.get(bucket, position + count, finish, lows)).replay()
        sequence.ids.extend(tokens)
        self.paging.settle(sequence)
        return count

    async def whole(self, texts: Sequence[Sequence[int]], bucket: int, adapter: Setting) -> None:
        """Computes whole sequences in one pass of `bucket` rows, one after another; nothing but the settled rows is
        kept of them."""
        await self.engine.make_room(bucket)
        self.check()
        rows = [Row(1, i, token, i) for ids in texts for i, token in enumerate(ids)]
        self.prompt.put_rows(rows + [Row(0, 0)] * (bucket - len(rows)))
        if self.engine.fetches_rows:
            await self.engine.fetch_rows([row.token for row in rows])
        self.engine.weigh(adapter)
        (await self.programs.get(bucket, bucket, "packed", self.engine.at_work(adapter))).replay()

    def packed(self) -> PackedCache:
        """The keys and values of a pass of whole sequences, allocated on first use."""
        if self._packed is None:
            rows = self.engine.options.chunk
            self._packed = PackedCache(self.ledger, self.engine.config, rows, checkpointing=True)
        return self._packed

    def weigh(self, settings: Mapping[int, Setting], rows: int) -> Lows | None:
        """Sets the adapters of the slots for a step of `rows` rows; returns those it records."""
        if rows == 1:
            self.engine.weigh(settings[0])
            return self.engine.at_work(settings[0])
        self.engine.weigh_rows(settings)
        return self.engine.at_work_by_row(settings.values())

    def check(self) -> None:
        """Every pass begins with this."""
        if self.stopped:
            raise SessionError("this model was closed in the middle of a call.")

    def share(self, ids: Sequence[int], most: int | None = None) -> tuple[int, int]:
        """How many of the waiting rows the next pass takes, and its bucket; `most` holds unless an image needs more."""
        chunk = min(most or self.engine.options.chunk, self.engine.options.chunk)
        return share(len(ids), self.images(ids), chunk, self.engine.most_rows)

    async def put_rows(self, sequence: TokenSequence, tokens: Sequence[int], position: int, bucket: int) -> None:
        """Uploads the tokens of the next pass of a prompt, and where its sequence lies."""
        config = self.engine.config
        rows: list[tuple[int, int, int, int]] = [
            (1, position + i, token, position + i) for i, token in enumerate(tokens)
        ]
        rows += [Row(0, position, 0, position)] * (bucket - len(rows))
        for start, end in self.images(tokens):
            reach = start + (config.window or 0) if not config.image_windowed else end  # later rows see less
            for i in range(start, end):
                rows[i] = Row(1 + max(i + 1 - reach, 0), position + i, tokens[i], position + end - 1)
        self.prompt.put_rows(rows)
        put_tables(self.prompt, 0, sequence)
        self.put_history(sequence, tokens, position)
        if self.engine.fetches_rows:
            await self.engine.fetch_rows(tokens)

    def put_history(self, sequence: TokenSequence, tokens: Sequence[int], position: int) -> None:
        """Uploads the tokens for the penalties; soft rows count as PAD."""
        known = [PAD if token >= SOFT else token for token in tokens]
        at = 0
        while at < len(known):
            page, place = divmod(position + at, PAGE)
            some = known[at : at + PAGE - place]
            offset = 4 * (sequence.full[page] * PAGE + place)
            self.device.write(self.paging.arena.history, offset, struct.pack(f"<{len(some)}I", *some))
            at += len(some)

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

    # -- logits of many rows

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
        """Frees everything, including the pages of every sequence."""
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
