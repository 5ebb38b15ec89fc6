"""Pages and shared prefixes against a plain model: every place remembers what was computed there, for which tokens."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wgemma.engine.adapting import BARE, Setting
from wgemma.engine.pages import Pages
from wgemma.engine.paging import ArenaFull, Paging
from wgemma.engine.sequence import TokenSequence
from wgemma.model.cache import Arena
from wgemma.model.rows import PAGE
from wgemma.sync import run

OTHER = Setting((("lora", "digest", 1.0),))


@dataclass
class FakeArena:
    """What each page holds, by kind: at every place all tokens up to there."""

    pages: dict[bool, int]
    held: dict[bool, dict[int, dict[int, Any]]] = field(default_factory=lambda: {False: {}, True: {}})
    copies: int = 0
    limit: int = 1 << 30

    async def grow(self, count: int, *, sliding: bool) -> None:
        if count > self.limit:
            raise ArenaFull("the fake arena ends here.")
        self.pages[sliding] = count

    def copy(self, source: int, target: int, *, sliding: bool) -> None:
        assert source != target
        self.copies += 1
        self.held[sliding][target] = dict(self.held[sliding].get(source, {}))


class Computing:
    """Computes sequences as a runner would."""

    def __init__(self, window: int, full: int, sliding: int, most: int = 1 << 20, budget: int = 1 << 20) -> None:
        self.window = window
        self.arena = FakeArena({False: full, True: sliding})
        self.paging = Paging(cast(Arena, self.arena), window, {False: most, True: 1 << 20}, budget)

    def begin(self, ids: list[int], adapter: Setting = BARE) -> TokenSequence:
        sequence = run(self.paging.begin(ids, adapter, ()))
        assert sequence.ids == ids[: sequence.reused] and sequence.reused < len(ids)
        self.check(sequence)
        return sequence

    def extend(self, sequence: TokenSequence, ids: list[int], ahead: int = 0) -> None:
        """Computes more tokens, and garbage in the places of `ahead` more."""
        start = len(sequence.ids)
        run(self.paging.reach(sequence, start + len(ids) + ahead))
        known = [*sequence.ids, *ids, *[-1] * ahead]
        for position in range(start, len(known)):
            told = (sequence.adapter.key, tuple(known[: position + 1]))
            page, place = divmod(position, PAGE)
            self.arena.held[False].setdefault(sequence.full[page], {})[place] = told
            if self.window:
                self.arena.held[True].setdefault(sequence.sliding[page], {})[place] = told
        sequence.ids += ids
        self.paging.settle(sequence)
        self.check(sequence)

    def check(self, sequence: TokenSequence) -> None:
        """Every position the next token sees lies where the tables say."""
        lowest = max(len(sequence.ids) - self.window, 0)
        for position in range(len(sequence.ids)):
            told = (sequence.adapter.key, tuple(sequence.ids[: position + 1]))
            page, place = divmod(position, PAGE)
            assert self.arena.held[False][sequence.full[page]][place] == told
            if self.window and position >= lowest:
                assert self.arena.held[True][sequence.sliding[page]][place] == told


@settings(max_examples=60)
@given(st.data(), st.sampled_from([0, 20, 64, 150]))
def test_every_sequence_sees_what_it_computed(data: st.DataObject, window: int) -> None:
    """Random arrivals with common beginnings, marks, ends and drops, in an arena that is always short of pages."""
    world = Computing(window, full=24, sliding=16, most=data.draw(st.sampled_from([24, 40])), budget=8)
    stems = [[data.draw(st.integers(0, 2)) for _ in range(200)] for _ in range(2)]
    live: list[TokenSequence] = []
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from(["begin", "begin", "extend", "mark", "end", "drop"]))
        if act == "begin" and len(live) < 3:
            stem = data.draw(st.sampled_from(stems))
            ids = stem[: data.draw(st.integers(1, 200))] + data.draw(st.lists(st.integers(0, 2), max_size=40)) + [9]
            try:
                sequence = world.begin(ids, data.draw(st.sampled_from([BARE, OTHER])))
            except ArenaFull:
                continue
            try:
                world.extend(sequence, ids[sequence.reused : -1])
                live.append(sequence)
            except ArenaFull:
                world.paging.drop(sequence)
        elif live:
            sequence = data.draw(st.sampled_from(live))
            if act == "extend":
                try:
                    world.extend(sequence, data.draw(st.lists(st.integers(0, 2), max_size=70)), ahead=3)
                except ArenaFull:
                    act = "drop"
            if act == "mark":
                world.paging.mark(sequence)
            if act in ("end", "drop"):
                live.remove(sequence)
                (world.paging.end if act == "end" else world.paging.drop)(sequence)
        for sequence in live:
            world.check(sequence)
    for sequence in live:
        world.paging.end(sequence)
    world.paging.prefixes.clear()
    assert [pages.held for pages in world.paging.pages.values()] == [0, 0]


@pytest.mark.parametrize("window", [0, 100])
def test_a_prefix_is_found_to_the_token(window: int) -> None:
    world = Computing(window, full=40, sliding=40)
    first = list(range(1000))
    sequence = world.begin([*first, 7])
    world.extend(sequence, first[:700])
    world.paging.mark(sequence)
    world.extend(sequence, first[700:])
    world.paging.end(sequence)
    assert world.begin([*first, 7]).reused == 1000
    assert world.begin([*first[:700], 5, 5]).reused == 700
    assert world.begin([5, *first]).reused == 0
    assert world.begin([*first, 7], OTHER).reused == 0
    # Between the marks a window has been let go; without one every token can be resumed.
    assert world.begin([*first[:900], 5]).reused == (700 if window else 900)
    assert world.begin(first[:1000]).reused == 999  # the last token is always computed: within reach of the last mark


def test_a_page_that_two_go_on_writing_is_copied_and_no_other() -> None:
    world = Computing(0, full=40, sliding=0)
    ids = list(range(3 * PAGE + 10))
    sequence = world.begin([*ids, 7])
    world.extend(sequence, ids)
    world.paging.record(sequence)
    assert (world.begin([*ids, 8]).reused, world.arena.copies) == (len(ids), 1)
    assert (world.begin([*ids[: 3 * PAGE], 8]).reused, world.arena.copies) == (3 * PAGE, 1)
    assert world.paging.pages[False].held == 4 + 1


def test_thirty_two_callers_hold_a_common_prompt_once() -> None:
    world = Computing(100, full=100, sliding=100)
    system = list(range(2000))
    first = world.begin([*system, 1, 2])
    world.extend(first, system)
    world.paging.mark(first)
    world.extend(first, [1])
    callers = [world.begin([*system, 3 + i, 2]) for i in range(31)]
    assert {caller.reused for caller in callers} == {2000}
    whole = 2000 // PAGE
    assert world.paging.pages[False].held == whole + 32  # each has its own last page


def test_what_nobody_used_for_longest_goes_first() -> None:
    world = Computing(0, full=8, sliding=0, most=8)
    old, new = [1] * 3 * PAGE, [2] * 3 * PAGE
    for ids in (old, new):
        sequence = world.begin([*ids, 9])
        world.extend(sequence, ids)
        world.paging.end(sequence)
    world.paging.end(world.begin([*old, 9]))  # used again
    third = world.begin([3] * 4 * PAGE)
    world.extend(third, [3] * 4 * PAGE)
    assert world.paging.prefixes.find(BARE.key, [*old, 9], len(old)).length == len(old)
    assert world.paging.prefixes.find(BARE.key, [*new, 9], len(new)).length < len(new)


def test_an_arena_grows_for_what_is_at_work_and_not_for_the_past() -> None:
    world = Computing(0, full=8, sliding=0, most=64)
    for i in range(20):
        sequence = world.begin([i] * 2 * PAGE)
        world.extend(sequence, [i] * 2 * PAGE)
        world.paging.end(sequence)
    assert world.arena.pages[False] == 8
    sequence = world.begin([99] * 20 * PAGE)
    world.extend(sequence, [99] * 20 * PAGE)
    assert world.arena.pages[False] == 32


def test_a_full_arena_says_so_and_takes_nothing() -> None:
    world = Computing(0, full=4, sliding=0, most=4)
    sequence = world.begin([1] * 3 * PAGE)
    world.extend(sequence, [1] * 3 * PAGE)
    other = world.begin([2])
    with pytest.raises(ArenaFull, match="256 tokens of the KV cache are in use"):
        world.extend(other, [2] * 2 * PAGE)
    world.paging.drop(other)
    assert world.paging.pages[False].held == 3


def test_pages_are_not_released_twice() -> None:
    pages = Pages(2, 2)
    page = pages.take()
    assert page == 0
    pages.release(page)
    with pytest.raises(AssertionError, match="released twice"):
        pages.release(page)


def test_a_prompt_that_fills_the_arena_can_come_again() -> None:
    """There is no page left to copy its last one to: it begins at the last whole page."""
    world = Computing(0, full=4, sliding=0, most=4)
    ids = list(range(4 * PAGE - 4))
    for expected in (0, 3 * PAGE, 3 * PAGE):
        sequence = world.begin([*ids, 7])
        assert sequence.reused == expected
        world.extend(sequence, ids[sequence.reused :])
        world.paging.end(sequence)


def test_pages_that_two_have_computed_are_held_once() -> None:
    world = Computing(20, full=20, sliding=20)
    ids = list(range(4 * PAGE))
    first = world.begin([*ids, 7])
    world.extend(first, ids)
    pages = list(first.full)
    world.paging.end(first)
    other = [*ids[: 2 * PAGE + 10], *[9] * PAGE]  # no mark lets it resume where it parts
    sequence = world.begin([*other, 7])
    assert sequence.reused == 0
    world.extend(sequence, other)
    assert world.paging.record(sequence)
    world.check(sequence)
    assert sequence.full[:2] == pages[:2] and world.paging.pages[False].held == 4 + 2


def test_the_same_prompt_again_keeps_nothing_twice() -> None:
    world = Computing(20, full=20, sliding=20)
    ids = list(range(PAGE + 30))
    for _ in range(5):
        sequence = world.begin([*ids, 7])
        world.extend(sequence, ids[sequence.reused :])
        world.paging.end(sequence)
        assert world.paging.prefixes.marks == 1 and world.paging.pages[False].held == 2
