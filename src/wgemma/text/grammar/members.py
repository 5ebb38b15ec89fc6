"""Objects and arrays: which member or item may come next, as expressions that unfold where they are reached.

Members come in the order of the schema, those it does not name last. How many are still required, and how many are
still possible, is known in every state, so that no object or array starts what it cannot finish.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from wgemma.text.grammar.expressions import Node, Pool, Rule
from wgemma.text.grammar.spelling import JsonSpelling

_ENDLESS = 1 << 60


class ValueRule(Rule):
    """The values that satisfy some schemas. `productive`: there is at least one of finite length."""

    productive = False


class Member(NamedTuple):
    name: str
    rule: ValueRule
    required: bool


class Extra(NamedTuple):
    """Members that no schema names: their keys, without quotes, and their values."""

    keys: Node
    rule: ValueRule


class Written(NamedTuple):
    """Where an object stands: the next named member, whether one is written, and how many (as far as that counts)."""

    next: int
    some: bool
    total: int


class ObjectShape:
    """An object. Its states are `Written`."""

    def __init__(
        self, spelling: JsonSpelling, members: Sequence[Member], extras: Sequence[Extra], least: int, most: int | None
    ) -> None:
        self.spelling = spelling
        self.pool: Pool = spelling.pool
        self.members = members
        self.all_extras = extras
        self.least = least
        self.most = _ENDLESS if most is None else most
        self.counts = least > sum(member.required for member in members) or most is not None
        self.ceiling = max(least, most or 0)
        words = sorted((word, i) for i, member in enumerate(members) for word in spelling.keys(member.name))
        self.words: Sequence[bytes] = [word for word, _ in words]
        self._members_of_words = [i for _, i in words]

    def possible(self) -> bool:
        """Whether there is such an object, by what is known of its members so far."""
        if not all(member.rule.productive for member in self.members if member.required):
            return False
        needed = sum(member.required for member in self.members)
        open_ended = any(extra.rule.productive for extra in self.all_extras)
        most = _ENDLESS if open_ended else sum(member.rule.productive for member in self.members)
        return needed <= self.most and self.least <= min(most, self.most)

    def rules(self) -> list[ValueRule]:
        return [member.rule for member in self.members] + [extra.rule for extra in self.all_extras]

    def node(self) -> Node:
        return self.pool.join(self.pool.words([b"{"]), self.pool.unfolding(self, Written(0, False, 0)))

    # Known once all rules are: which members can be written, and what is left to write from each on.

    @cached_property
    def extras(self) -> list[Extra]:
        return [extra for extra in self.all_extras if extra.rule.productive]

    @cached_property
    def needed(self) -> list[int]:
        """How many required members there are from each on."""
        return _sums([member.required for member in self.members])

    @cached_property
    def available(self) -> list[int]:
        """How many members can be written from each on."""
        return _sums([member.rule.productive for member in self.members])

    @cached_property
    def next_required(self) -> list[int]:
        """The first required member from each on."""
        result = [len(self.members)]
        for i in range(len(self.members) - 1, -1, -1):
            result.append(i if self.members[i].required else result[-1])
        return result[::-1]

    def can_finish(self, following: int, count: int) -> bool:
        if not self.counts:
            return True
        most = _ENDLESS if self.extras else count + self.available[following]
        return count + self.needed[following] <= self.most and self.least <= min(most, self.most)

    def open(self, state: Written, word: int) -> bool:
        i = self._members_of_words[word]
        return (
            state.next <= i <= self.next_required[state.next]
            and self.members[i].rule.productive
            and self.can_finish(i + 1, state.total + 1)
        )

    def after(self, state: Written, word: int) -> Node:
        i = self._members_of_words[word]
        return self._value(self.members[i].rule, state, i + 1)

    def _value(self, rule: ValueRule, state: Written, following: int) -> Node:
        count = min(state.total + 1, self.ceiling + 1) if self.counts else 0
        return self.pool.join(self.pool.invoke(rule), self.pool.unfolding(self, Written(following, True, count)))

    def unfold(self, state: Written) -> Node:
        pool, end = self.pool, len(self.members)
        options = [pool.switch(self, state, 0, len(self.words), 0)]
        complete = self.needed[state.next] == 0
        if complete and self.can_finish(end, state.total + 1):
            options += [
                pool.join(self.spelling.key(extra.keys), self._value(extra.rule, state, end)) for extra in self.extras
            ]
        more = pool.either(options)
        if state.some:
            more = pool.join(self.spelling.comma, more)
        closes = complete and (not self.counts or state.total >= self.least)
        return pool.either([more, pool.words([b"}"])]) if closes else more


def _sums(flags: Sequence[bool]) -> list[int]:
    result = [0]
    for flag in reversed(flags):
        result.append(result[-1] + flag)
    return result[::-1]


class Wanted(NamedTuple):
    """Items of which there must be some: `low` to `high` of them."""

    low: int
    high: int | None


class Item(NamedTuple):
    """A way to write the item at some index: its rule, and which of the wanted ones it is."""

    rule: ValueRule
    counts_for: tuple[bool, ...]


class Listed(NamedTuple):
    """Where an array stands: the next index, whether an item is written, and how many of each wanted kind."""

    next: int
    some: bool
    found: tuple[int, ...]


class ArrayShape:
    """An array. `items[i]` are the ways to write item i; the last entry holds for all that follow."""

    def __init__(
        self,
        spelling: JsonSpelling,
        items: Sequence[Sequence[Item]],
        least: int,
        most: int | None,
        wanted: Sequence[Wanted],
    ) -> None:
        self.spelling = spelling
        self.pool: Pool = spelling.pool
        self.items = items
        self.least = least
        self.most = _ENDLESS if most is None else most
        self.wanted = wanted
        self.ceiling = max(len(items) - 1, least, most or 0)  # beyond it, all indices are alike

    def rules(self) -> list[ValueRule]:
        return [item.rule for options in self.items for item in options]

    def possible(self) -> bool:
        if not self.wanted:
            return self.least <= min(self.most, self._reach())
        return self._start() in self._finishing()

    def node(self) -> Node:
        return self.pool.join(self.pool.words([b"["]), self.pool.unfolding(self, self._start()))

    def _start(self) -> Listed:
        return Listed(0, False, (0,) * len(self.wanted))

    def _options(self, index: int) -> list[Item]:
        return [item for item in self.items[min(index, len(self.items) - 1)] if item.rule.productive]

    def _reach(self) -> int:
        """How many items can be written at all."""
        return next((i for i in range(len(self.items)) if not self._options(i)), _ENDLESS)

    def _ways(self, state: Listed) -> list[tuple[Item, Listed]]:
        """The items that may come next, and where each leads."""
        ways = []
        for item in self._options(state.next) if state.next < self.most else ():
            found = tuple(
                min(n + hit, want.low if want.high is None else want.high + 1)
                for n, hit, want in zip(state.found, item.counts_for, self.wanted, strict=True)
            )
            if all(want.high is None or n <= want.high for want, n in zip(self.wanted, found, strict=True)):
                ways.append((item, Listed(min(state.next + 1, self.ceiling), True, found)))
        return ways

    def _closes(self, state: Listed) -> bool:
        return state.next >= self.least and all(
            found >= want.low for found, want in zip(state.found, self.wanted, strict=True)
        )

    def _finishing(self) -> set[Listed]:
        """The states from which the end can be reached."""
        before: dict[Listed, list[Listed]] = {self._start(): []}
        waiting = [self._start()]
        for state in waiting:
            for _, after in self._ways(state):
                if after not in before:
                    before[after] = []
                    waiting.append(after)
                before[after].append(state)
        done = {state for state in before if self._closes(state)}
        waiting = list(done)
        for state in waiting:
            for earlier in before[state]:
                if earlier not in done:
                    done.add(earlier)
                    waiting.append(earlier)
        return done

    @cached_property
    def _alive(self) -> set[Listed] | None:
        return self._finishing() if self.wanted else None

    def unfold(self, state: Listed) -> Node:
        pool = self.pool
        more = pool.either(
            [
                pool.join(pool.invoke(item.rule), pool.unfolding(self, after))
                for item, after in self._ways(state)
                if self._alive is None or after in self._alive
            ]
        )
        if state.some:
            more = pool.join(self.spelling.comma, more)
        return pool.either([more, pool.words([b"]"])]) if self._closes(state) else more
