"""Regular expressions over bytes that know their derivatives: an automaton that exists only as far as it is walked.

The derivative of a language by a byte is what may follow that byte, and it is an expression again: `step`. Equal
expressions are one object, so a state of the automaton is an expression and states compare by identity. Counts are part
of the expression: a string of at most 65535 characters costs nothing until it is written. Intersection and complement
come for free; whether an intersection has any word at all takes a search, which `Pool` bounds and remembers.

The alphabet is 0 … 255 for bytes and 256 … for special tokens. No live expression is empty: whatever cannot be
completed any more is `NOTHING`. An expression may call rules (`Invoke`); `automaton` keeps the stack for those.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from wgemma.text.grammar.byte_sets import BYTES, Classes, each_apart, lowest, refined
from wgemma.text.grammar.sorted_words import branches, narrowed

Call = tuple["Rule", "Node"]

_SEARCHED = 4000  # states looked at to find one word of an intersection
_COMPILING = 40_000  # expressions made by one search before anything is written; each takes some 20 µs
_WRITING = 1_000  # and by one search while an answer is written and others wait; real schemas need fewer than 100
_MOST = 500_000  # expressions in a pool beyond which nothing is searched any more


class Rule:
    """A named expression that others call. It is built when first needed."""

    def __init__(self, name: str, nullable: bool = False) -> None:
        self.name = name
        self.nullable = nullable
        self.rank = 0  # callers at their first byte have lower ranks
        self._body: Node | None = None

    def build(self) -> "Node":
        raise NotImplementedError

    @property
    def body(self) -> "Node":
        if self._body is None:
            self._body = self.build()
        return self._body


class Unfolder(Protocol):
    """Writes the expression of a state that need not exist before it is reached."""

    def unfold(self, state: Any) -> "Node": ...


class Keys(Protocol):
    """What follows a word of a `Switch`. No word is a prefix of another."""

    words: Sequence[bytes]

    def open(self, state: Any, word: int) -> bool: ...
    def after(self, state: Any, word: int) -> "Node": ...


class Node:
    __slots__ = ("_calls", "_classes", "_first", "_steps", "least", "nullable", "pool", "serial")

    def __init__(self, nullable: bool, least: int) -> None:
        self.nullable = nullable
        self.least = least  # no word is shorter
        self.serial = 0
        self.pool: Pool
        self._steps: dict[int, Node] = {}
        self._first: int | None = None
        self._calls: tuple[Call, ...] | None = None
        self._classes: Classes | None = None

    def step(self, symbol: int) -> "Node":
        """What may follow `symbol`."""
        found = self._steps.get(symbol)
        if found is None:
            found = self._steps[symbol] = self._step(symbol)
        return found

    def first(self) -> int:
        """The symbols that words start with, as bits. Words of called rules do not count."""
        if self._first is None:
            self._first = self._find_first()
        return self._first

    def classes(self) -> Classes:
        """Sets of bytes, as bits, that share what may follow. Together they are all bytes."""
        if self._classes is None:
            self._classes = self._find_classes()
        return self._classes

    def calls(self) -> tuple[Call, ...]:
        """The rules a word may start with, and what follows each."""
        if self._calls is None:
            self._calls = self._find_calls()
        return self._calls

    def _step(self, symbol: int) -> "Node":
        return NOTHING

    def _find_first(self) -> int:
        return sum(same for same in self.classes() if self.step(lowest(same)) is not NOTHING)

    def _find_classes(self) -> Classes:
        found: dict[Node, int] = {}
        for symbol in range(256):
            after = self.step(symbol)
            found[after] = found.get(after, 0) | 1 << symbol
        return tuple(found.values())

    def _find_calls(self) -> tuple[Call, ...]:
        return ()


class _Nothing(Node):
    """No word at all."""

    __slots__ = ()


class _Empty(Node):
    """The empty word."""

    __slots__ = ()


NOTHING = _Nothing(False, 1 << 60)
EMPTY = _Empty(True, 0)


class Letters(Node):
    """One symbol of a set."""

    __slots__ = ("mask",)

    def __init__(self, mask: int) -> None:
        super().__init__(False, 1)
        self.mask = mask

    def _step(self, symbol: int) -> Node:
        return EMPTY if self.mask >> symbol & 1 else NOTHING

    def _find_first(self) -> int:
        return self.mask

    def _find_classes(self) -> Classes:
        return refined([(self.mask & BYTES, BYTES & ~self.mask)])


class Words(Node):
    """The words `texts[low:high]`, of which `depth` bytes, the same for all, are written."""

    __slots__ = ("depth", "high", "low", "texts")

    def __init__(self, texts: Sequence[bytes], low: int, high: int, depth: int) -> None:
        super().__init__(len(texts[low]) == depth, 0 if len(texts[low]) == depth else 1)
        self.texts, self.low, self.high, self.depth = texts, low, high, depth

    def _step(self, symbol: int) -> Node:
        low, high = narrowed(self.texts, self.low, self.high, self.depth, symbol)
        return self.pool.words_between(self.texts, low, high, self.depth + 1)

    def _find_first(self) -> int:
        return sum(1 << symbol for symbol, _, _ in branches(self.texts, self.low, self.high, self.depth))

    def _find_classes(self) -> Classes:
        return each_apart(self.first())


class Switch(Node):
    """Words that each have a continuation, like the keys of an object. `keys` says which may follow in `state`."""

    __slots__ = ("depth", "high", "keys", "low", "state")

    def __init__(self, keys: Keys, state: Any, low: int, high: int, depth: int) -> None:
        super().__init__(False, 1)
        self.keys, self.state, self.low, self.high, self.depth = keys, state, low, high, depth

    def _step(self, symbol: int) -> Node:
        keys = self.keys
        low, high = narrowed(keys.words, self.low, self.high, self.depth, symbol)
        return self.pool.switch(keys, self.state, low, high, self.depth + 1)

    def _find_first(self) -> int:
        return sum(
            1 << symbol
            for symbol, low, high in branches(self.keys.words, self.low, self.high, self.depth)
            if any(self.keys.open(self.state, word) for word in range(low, high))
        )

    def _find_classes(self) -> Classes:
        return each_apart(self.first())


class Group(Node):
    """An expression that stays together when others follow it, so that equal texts lead to equal states."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        super().__init__(node.nullable, node.least)
        self.node = node

    def _step(self, symbol: int) -> Node:
        return self.pool.group(self.node.step(symbol))

    def _find_first(self) -> int:
        return self.node.first()

    def _find_classes(self) -> Classes:
        return self.node.classes()


class Join(Node):
    """One after the other. `head` is no Join itself."""

    __slots__ = ("head", "tail")

    def __init__(self, head: Node, tail: Node) -> None:
        super().__init__(head.nullable and tail.nullable, min(head.least + tail.least, NOTHING.least))
        self.head, self.tail = head, tail

    def _parts(self) -> Iterator[tuple[Node, Node]]:
        """The heads that may come first, each with its tail. A loop, for a chain of optional parts may be long."""
        node: Node = self
        while isinstance(node, Join):
            yield node.head, node.tail
            if not node.head.nullable:
                return
            node = node.tail
        yield node, EMPTY

    def _step(self, symbol: int) -> Node:
        join = self.pool.join
        if not self.head.nullable:
            after = self.head.step(symbol)
            return NOTHING if after is NOTHING else join(after, self.tail)
        steps = [(head.step(symbol), tail) for head, tail in self._parts()]
        return self.pool.either([join(after, tail) for after, tail in steps if after is not NOTHING])

    def _find_first(self) -> int:
        mask = 0
        for head, _ in self._parts():
            mask |= head.first()
        return mask

    def _find_classes(self) -> Classes:
        return refined(head.classes() for head, _ in self._parts())

    def _find_calls(self) -> tuple[Call, ...]:
        join = self.pool.join
        return merged(
            [(rule, join(rest, tail)) for head, tail in self._parts() for rule, rest in head.calls()], self.pool
        )


class Either(Node):
    """Any of several."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Node, ...]) -> None:
        super().__init__(any(part.nullable for part in parts), min(part.least for part in parts))
        self.parts = parts

    def _step(self, symbol: int) -> Node:
        return self.pool.either([part.step(symbol) for part in self.parts])

    def _find_first(self) -> int:
        mask = 0
        for part in self.parts:
            mask |= part.first()
        return mask

    def _find_classes(self) -> Classes:
        return refined(part.classes() for part in self.parts)

    def _find_calls(self) -> tuple[Call, ...]:
        return merged([call for part in self.parts for call in part.calls()], self.pool)


class Repeat(Node):
    """`node`, at least `low` and at most `high` times; None is any number."""

    __slots__ = ("high", "low", "node")

    def __init__(self, node: Node, low: int, high: int | None) -> None:
        super().__init__(low == 0, min(low * node.least, NOTHING.least))
        self.node, self.low, self.high = node, low, high

    def _rest(self) -> Node:
        return self.pool.repeat(self.node, max(self.low - 1, 0), None if self.high is None else self.high - 1)

    def _step(self, symbol: int) -> Node:
        after = self.node.step(symbol)
        return NOTHING if after is NOTHING else self.pool.join(after, self._rest())

    def _find_first(self) -> int:
        return self.node.first()

    def _find_classes(self) -> Classes:
        return self.node.classes()

    def _find_calls(self) -> tuple[Call, ...]:
        return tuple((rule, self.pool.join(rest, self._rest())) for rule, rest in self.node.calls())


class Both(Node):
    """What all of several have in common. No part calls a rule."""

    __slots__ = ("alive", "parts")

    def __init__(self, parts: tuple[Node, ...]) -> None:
        super().__init__(all(part.nullable for part in parts), max(part.least for part in parts))
        self.parts = parts
        self.alive: bool | None = True if self.nullable else None  # None: nobody has looked for a word yet

    def _step(self, symbol: int) -> Node:
        return self.pool.if_alive(self.unchecked_step(symbol))

    def unchecked_step(self, symbol: int) -> Node:
        return self.pool.unchecked_both([part.step(symbol) for part in self.parts])

    def _find_classes(self) -> Classes:
        return refined(part.classes() for part in self.parts)

    def successors(self) -> list[Node]:
        """Every different derivative, alive or not."""
        return [*dict.fromkeys(self.unchecked_step(lowest(same)) for same in self.classes())]


class Except(Node):
    """Every word over bytes that `node` does not have. Only useful inside `Both`."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        super().__init__(not node.nullable, 0 if not node.nullable else 1)
        self.node = node

    def _step(self, symbol: int) -> Node:
        return self.pool.other_than(self.node.step(symbol))

    def _find_first(self) -> int:
        return BYTES

    def _find_classes(self) -> Classes:
        return self.node.classes()


class Invoke(Node):
    """A word of a rule."""

    __slots__ = ("rule",)

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule.nullable, 0 if rule.nullable else 1)
        self.rule = rule

    def _find_first(self) -> int:
        return 0

    def _find_calls(self) -> tuple[Call, ...]:
        return ((self.rule, EMPTY),)


class Unfolding(Node):
    """The expression of `state`, which `owner` writes when it is reached. It is never nullable."""

    __slots__ = ("_inner", "owner", "state")

    def __init__(self, owner: Unfolder, state: Any) -> None:
        super().__init__(False, 1)
        self.owner, self.state = owner, state
        self._inner: Node | None = None

    def inner(self) -> Node:
        if self._inner is None:
            self._inner = self.owner.unfold(self.state)
        return self._inner

    def _step(self, symbol: int) -> Node:
        return self.inner().step(symbol)

    def _find_first(self) -> int:
        return self.inner().first()

    def _find_classes(self) -> Classes:
        return self.inner().classes()

    def _find_calls(self) -> tuple[Call, ...]:
        return self.inner().calls()


class Pool:
    """Makes expressions; equal ones are the same object."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self._sorted: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}
        self.universal: set[Node] = set()  # each has every word its neighbours in an Either can have
        self.single: set[Node] = set()  # exactly one character each
        self.links: dict[Node, Any] = {}  # what `runs` knows of each
        self.patience = _COMPILING
        self.gave_up = False  # a search ended without an answer, and its expression counts as empty
        self.anything = self.other_than(NOTHING)

    def node(self, kind: type[Node], *fields: Any) -> Node:
        """The only node of its kind with these fields."""
        key = (kind, *fields)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = kind(*fields)
            found.pool = self
            found.serial = len(self._nodes)
        return found

    def letters(self, mask: int) -> Node:
        return self.node(Letters, mask) if mask else NOTHING

    def words(self, texts: Iterable[bytes]) -> Node:
        key = tuple(sorted(set(texts)))
        ordered = self._sorted.setdefault(key, key)
        return self.words_between(ordered, 0, len(ordered), 0)

    def words_between(self, texts: Sequence[bytes], low: int, high: int, depth: int) -> Node:
        if low >= high:
            return NOTHING
        if high - low == 1:
            if len(texts[low]) == depth:
                return EMPTY
            if (low, high) != (0, len(texts)):  # alone from here on: share what is the same in other lists
                return self.words([texts[low][depth:]])
        key = (Words, id(texts), low, high, depth)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Words(texts, low, high, depth)
            found.pool, found.serial = self, len(self._nodes)
        return found

    def switch(self, keys: Keys, state: Any, low: int, high: int, depth: int) -> Node:
        if high - low == 1 and len(keys.words[low]) == depth:
            return keys.after(state, low) if keys.open(state, low) else NOTHING
        if not any(keys.open(state, word) for word in range(low, high)):
            return NOTHING
        return self.node(Switch, keys, state, low, high, depth)

    def join(self, *nodes: Node) -> Node:
        result: Node = EMPTY
        for node in reversed(nodes):
            result = self._join(node, result)
        return result

    def _join(self, left: Node, right: Node) -> Node:
        if left is NOTHING or right is NOTHING:
            return NOTHING
        if left is EMPTY:
            return right
        if right is EMPTY:
            return left
        heads = []
        while isinstance(left, Join):
            heads.append(left.head)
            left = left.tail
        right = self.node(Join, left, right)
        for head in reversed(heads):
            right = self.node(Join, head, right)
        return right

    def group(self, node: Node) -> Node:
        return self.node(Group, node) if isinstance(node, Join | Either) else node

    def either(self, nodes: Iterable[Node]) -> Node:
        parts: set[Node] = set()
        nodes = [*nodes]
        if len(nodes) < 2:
            return nodes[0] if nodes else NOTHING
        for node in nodes:
            if isinstance(node, Either):
                parts.update(node.parts)
            elif node is not NOTHING:
                parts.add(node)
        if len(parts) > 1:
            for top in self.universal:
                if top in parts:
                    return top
            mask = 0
            for part in [part for part in parts if isinstance(part, Letters)]:
                mask |= part.mask
                parts.discard(part)
            if mask:
                parts.add(self.letters(mask))
            if EMPTY in parts and any(part.nullable for part in parts if part is not EMPTY):
                parts.discard(EMPTY)
        if not parts:
            return NOTHING
        if len(parts) == 1:
            return parts.pop()
        return self.node(Either, tuple(sorted(parts, key=_serial)))

    def repeat(self, node: Node, low: int = 0, high: int | None = None) -> Node:
        if high == 0 or node is EMPTY:
            return EMPTY
        if node is NOTHING:
            return EMPTY if low == 0 else NOTHING
        if low == high == 1:
            return node
        return self.node(Repeat, node, 0 if node.nullable else low, high)

    def optional(self, node: Node) -> Node:
        return self.either([EMPTY, node])

    def other_than(self, node: Node) -> Node:
        return node.node if isinstance(node, Except) else self.node(Except, node)

    def both(self, nodes: Iterable[Node]) -> Node:
        return self.if_alive(self.unchecked_both(nodes))

    def unchecked_both(self, nodes: Iterable[Node]) -> Node:
        """The intersection, which may turn out to be empty."""
        parts: set[Node] = set()
        for node in nodes:
            if node is NOTHING:
                return NOTHING
            if isinstance(node, Both):
                parts.update(node.parts)
            elif node is not self.anything:
                parts.add(node)
        if EMPTY in parts:
            return EMPTY if all(part.nullable for part in parts) else NOTHING
        if len(parts) == 1:
            return parts.pop()
        if not parts:
            return self.anything
        return self.node(Both, tuple(sorted(parts, key=_serial)))

    def if_alive(self, node: Node) -> Node:
        if not isinstance(node, Both):
            return node
        if node.alive is None:
            self._search(node)
        return node if node.alive else NOTHING

    def hurry(self) -> None:
        """From now on an answer is written, and a search that takes long is given up."""
        self.patience = _WRITING

    def _search(self, start: Both) -> None:
        """Looks for a word of `start`, shortest rest first. All states on the way to one are alive; if none of those
        that can be reached leads to one, all are dead."""
        most = min(len(self._nodes) + self.patience, _MOST)
        before: dict[Node, Node | None] = {start: None}
        waiting: list[tuple[int, int, Node]] = [(0, start.serial, start)]
        while waiting:
            _, _, node = heappop(waiting)
            if not isinstance(node, Both) or node.alive:
                way: Node | None = node
                while way is not None:
                    if isinstance(way, Both):
                        way.alive = True
                    way = before[way]
                return
            if node.alive is False:
                continue
            for target in node.successors():
                if target is not NOTHING and target not in before:
                    before[target] = node
                    missing = sum(part.least for part in target.parts) if isinstance(target, Both) else 0
                    heappush(waiting, (missing, target.serial, target))
            if len(before) > _SEARCHED or len(self._nodes) > most:
                # A state that is alive knows a way on that is alive, too; so this one can be given up.
                start.alive, self.gave_up = False, True
                return
        for node in before:
            if isinstance(node, Both):
                node.alive = False

    def invoke(self, rule: Rule) -> Node:
        return self.node(Invoke, rule)

    def unfolding(self, owner: Unfolder, state: Any) -> Node:
        return self.node(Unfolding, owner, state)


def _serial(node: Node) -> int:
    return node.serial


def merged(calls: list[Call], pool: Pool) -> tuple[Call, ...]:
    """One call per rule."""
    rests: dict[Rule, list[Node]] = {}
    for rule, rest in calls:
        rests.setdefault(rule, []).append(rest)
    return tuple((rule, found[0] if len(found) == 1 else pool.either(found)) for rule, found in rests.items())


def matches(node: Node, text: bytes) -> bool:
    """Whether `text` is a word of an expression without calls."""
    for byte in text:
        node = node.step(byte)
    return node.nullable
