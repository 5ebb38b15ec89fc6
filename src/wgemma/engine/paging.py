"""Who has which pages: sequences begin where others have been, take pages as they grow, and leave theirs for the next.

When pages run out, what nobody has used for longest is forgotten, or the arena grows; when neither helps, `ArenaFull`
is raised and a sequence has to make room.
"""

from collections.abc import Mapping, Sequence

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.engine import Engine
from wgemma.engine.options import SLACK, first_pages, most_pages
from wgemma.engine.pages import Pages
from wgemma.engine.prefixes import Prefixes
from wgemma.engine.sequence import TokenSequence
from wgemma.errors import OutOfMemory
from wgemma.gpu.ledger import Ledger
from wgemma.model.cache import Arena, page_costs
from wgemma.model.rows import PAGE, pages_of

LEAST_FOR_MARKS = 64 << 20  # bytes; or a tenth of the weights, if that is more
EVICTED = 16  # at least this part of the spare pages goes at once


class ArenaFull(OutOfMemory):
    """No page is left, and none can be made."""


class Paging:
    """The arena of one model and its pages: `pages[True]` are the sliding layers'."""

    def __init__(self, arena: Arena, window: int, most: Mapping[bool, int], budget: int) -> None:
        self.arena = arena
        self.window = window
        self.pages = {sliding: Pages(count, most[sliding]) for sliding, count in arena.pages.items()}
        self.prefixes = Prefixes(self.pages[False], self.pages[True], window, budget)
        self._refused: dict[bool, str] = {}  # why the arena could not grow

    @classmethod
    def of(cls, ledger: Ledger, engine: Engine) -> "Paging":
        """For one model, as its options say."""
        config, options = engine.config, engine.options
        costs = page_costs(config, options.kv)
        budget = max(LEAST_FOR_MARKS, engine.weight_bytes // 10) // max(costs[True], 1)
        most = most_pages(config, options, budget)
        first = {sliding: min(count, most[sliding]) for sliding, count in first_pages(config, options).items()}
        arena = Arena(ledger, config, kv=options.kv, full=first[False], sliding=first[True])
        return cls(arena, config.window or 0, most, budget)

    # -- a sequence's life

    async def begin(self, ids: Sequence[int], adapter: Setting, images: Sequence[tuple[int, int]]) -> TokenSequence:
        """A sequence that begins with as many of `ids` as are cached, except for the last, which is always computed."""
        most = len(ids) - 1
        while True:
            found = self.prefixes.find(adapter.key, ids, most, images)
            sequence = self.alone(adapter)
            sequence.full = [self.pages[False].hold(node.page) for node in found.path]
            sequence.sliding = {number: self.pages[True].hold(page) for number, page in found.sliding.items()}
            sequence.trail.path = list(found.path)
            try:
                if found.copied is not None:
                    await self._copy_last(sequence, found.copied)
            except ArenaFull:  # then without the part of a page
                most = found.length // PAGE * PAGE
                continue
            sequence.ids = list(ids[: found.length])
            sequence.reused = found.length
            return sequence

    def alone(self, adapter: Setting = BARE) -> TokenSequence:
        """An empty sequence."""
        return TokenSequence(self.prefixes.trail(adapter.key), adapter)

    async def _copy_last(self, sequence: TokenSequence, source: int) -> None:
        """Gives the sequence its own copy of the page it goes on writing."""
        number = len(sequence.full)
        held = self.pages[False].hold(source)  # not to be evicted meanwhile
        try:
            own = await self._take(sliding=False)
            self.arena.copy(source, own, sliding=False)
            sequence.full.append(own)
            if number in sequence.sliding:
                shared = sequence.sliding[number]
                own = await self._take(sliding=True)
                self.arena.copy(shared, own, sliding=True)
                sequence.sliding[number] = own
                self.pages[True].release(shared)
        except BaseException:
            self.drop(sequence)
            raise
        finally:
            self.pages[False].release(held)

    async def reach(self, sequence: TokenSequence, end: int, lowest: int = 0) -> bool:
        """Gives the sequence pages for all positions below `end`, and sliding ones from number `lowest` on; returns
        whether it got any."""
        before = len(sequence.full)
        while sequence.room < end:
            number = len(sequence.full)
            if self.window and number >= lowest and number not in sequence.sliding:
                sequence.sliding[number] = await self._take(sliding=True)
            sequence.full.append(await self._take(sliding=False))
        return len(sequence.full) > before

    def settle(self, sequence: TokenSequence) -> None:
        """Lets go of the sliding pages that the window has left."""
        lowest = (len(sequence.ids) - self.window - SLACK) // PAGE
        for number in [number for number in sequence.sliding if number < lowest]:
            self.pages[True].release(sequence.sliding.pop(number))

    def record(self, sequence: TokenSequence) -> bool:
        """Shares what is computed with those who come; returns whether pages of others took the place of its own."""
        return self.prefixes.record(sequence.trail, sequence.ids, sequence.full)

    def mark(self, sequence: TokenSequence) -> None:
        """`record`, and lets others resume right here."""
        self.record(sequence)
        end = len(sequence.ids)
        if not end:
            return
        kept = {number: page for number, page in sequence.sliding.items() if number < pages_of(end)}
        self.prefixes.mark(sequence.trail, end, kept)

    def end(self, sequence: TokenSequence) -> None:
        """The sequence is over; what it computed stays for others."""
        self.mark(sequence)
        self.drop(sequence)

    def drop(self, sequence: TokenSequence) -> None:
        """Lets go of everything that only this sequence holds."""
        self.prefixes.leave(sequence.trail)
        for page in sequence.full:
            self.pages[False].release(page)
        for page in sequence.sliding.values():
            self.pages[True].release(page)
        sequence.full, sequence.sliding, sequence.ids = [], {}, []
        sequence.trail = self.prefixes.trail(sequence.adapter.key)

    # -- running out

    async def _take(self, *, sliding: bool) -> int:
        pages = self.pages[sliding]
        while (page := pages.take()) is None:
            if not (await self._grow(sliding=sliding) if self._worth_growing(sliding=sliding) else False):
                self._forget(sliding=sliding)
        return page

    def _worth_growing(self, *, sliding: bool) -> bool:
        """Whether the arena is too small for what is at work; otherwise forgetting is enough."""
        pages = self.pages[sliding]
        return pages.count < pages.most and (sliding or 2 * self.prefixes.spare < pages.count)

    async def _grow(self, *, sliding: bool) -> bool:
        pages = self.pages[sliding]
        count = min(2 * pages.count, pages.most)
        try:
            await self.arena.grow(count, sliding=sliding)
        except OutOfMemory as error:
            pages.most, self._refused[sliding] = pages.count, str(error)
            if self.prefixes.marks if sliding else self.prefixes.spare:
                return False
            raise ArenaFull(str(error)) from None
        pages.grow(count)
        return True

    def _forget(self, *, sliding: bool) -> None:
        """Frees pages that only the past holds."""
        prefixes = self.prefixes
        if not (prefixes.drop_mark() if sliding else prefixes.evict(max(self.pages[False].count // EVICTED, 1))):
            told = (
                f"all {self.pages[sliding].count * PAGE} tokens of the KV cache are in use. "
                "Load the model with a larger arena, or a smaller context."
            )
            raise ArenaFull(self._refused.get(sliding, told))
