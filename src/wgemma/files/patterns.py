"""Regular expressions from a file, matched in bounded time: `re` may take for ever over a hostile one.

    pattern = branch | branch …        branch = item item …
    item    = atom, or atom with one of * + ? {m} {m,} {,n} {m,n}, lazy or not
    atom    = character | . | \\d \\w \\s \\D \\W \\S | [class] | ^ $ \\A \\Z
            | (pattern) | (?:pattern) | (?P<name>pattern)

Patterns become one automaton whose states are all followed at once, a character at a time. A set of states is built
once and then remembered with its successors. Anything else `re` knows (look-around, references, flags, possessive
repetition) is refused by name, and so are patterns that need too many states or steps.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from wgemma.errors import AdapterError

MAX_PATTERN = 256  # characters
MAX_DEPTH = 32
MAX_STATES = 1 << 16  # of all patterns together: those of the largest Gemma, one per matrix, take 30 000
MAX_STEPS = 1 << 21  # about a second

Test: TypeAlias = Callable[[str], bool]
Node: TypeAlias = "Test | Literal['^', '$'] | _Branches | _Sequence | _Repeat"

_COUNT = re.compile(r"\{(\d*)(?:(,)(\d*))?\}")
_NAME = re.compile(r"\?(?::|P<[^\W\d]\w*>)")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class Patterns:
    """An ordered list of patterns, matched against dotted paths by PEFT's rule: `(.*\\.)?(pattern)$`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._program = _Program()
        self._starts = [self._program.add(pattern, _Parser(pattern).tree()) for pattern in patterns]
        self._sets: dict[tuple[int, ...], _Set] = {}
        self._steps = 0
        self._first = _Set(self._kept(self._starts, start=True))

    def first(self, path: str) -> int | None:
        """The index of the first pattern that matches the end of `path`, from its start or after a dot."""
        states = self._first
        for character in path:
            following = states.following.get(character)
            if following is None:
                following = states.following[character] = self._step(states, character)
            states = following
        if states.match is _UNKNOWN:
            found = self._reached(states.members, start=not path, end=True)
            states.match = min((index for state in found if (index := self._program.match[state]) >= 0), default=None)
        return states.match

    def _step(self, states: "_Set", character: str) -> "_Set":
        test, exits = self._program.test, self._program.exits
        after = [exits[state][0] for state in states.members if (wants := test[state]) is not None and wants(character)]
        members = self._kept(after + self._starts if character == "." else after)
        return self._sets.setdefault(members, _Set(members))

    def _kept(self, states: Iterable[int], start: bool = False) -> tuple[int, ...]:
        """The states that matter after these: those that wait for a character or for the end."""
        program, reached = self._program, self._reached(states, start=start, end=False)
        return tuple(sorted(i for i in reached if program.test[i] or program.anchor[i] == "$" or program.match[i] >= 0))

    def _reached(self, states: Iterable[int], *, start: bool, end: bool) -> set[int]:
        """The states that can be reached without a character."""
        program, reached, waiting = self._program, set[int](), list(states)
        while waiting:
            state = waiting.pop()
            if state in reached:
                continue
            reached.add(state)
            anchor = program.anchor[state]
            if program.test[state] is None and (not anchor or (start if anchor == "^" else end)):
                waiting += program.exits[state]
        self._steps += len(reached)
        if self._steps > MAX_STEPS:
            raise AdapterError("rank_pattern or alpha_pattern is too complex: matching it takes too long.")
        return reached


_UNKNOWN = -1


class _Set:
    """Some states, the sets that follow by character, and which pattern matches if the path ends here."""

    __slots__ = ("following", "match", "members")

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.following: dict[str, _Set] = {}
        self.match: int | None = _UNKNOWN


class _Program:
    """States by number. One with a test takes a character; one with an anchor or neither goes on without."""

    def __init__(self) -> None:
        self.test: list[Test | None] = []
        self.anchor: list[str] = []
        self.exits: list[list[int]] = []
        self.match: list[int] = []  # the pattern that ends here, or −1
        self._patterns = 0
        self._built = 0

    def add(self, pattern: str, tree: "Node") -> int:
        """The first state of another pattern."""
        end = self._state(match=self._patterns)
        self._patterns += 1
        return self._build(tree, end, pattern)

    def _state(self, *exits: int, test: Test | None = None, anchor: str = "", match: int = -1) -> int:
        self.test.append(test)
        self.anchor.append(anchor)
        self.exits.append(list(exits))
        self.match.append(match)
        return len(self.test) - 1

    def _build(self, node: "Node", then: int, pattern: str) -> int:
        """The first state of a node that continues at state `then`."""
        self._built += 1  # counts nodes that need no state, too: they can be repeated as often
        if self._built > MAX_STATES:
            raise _refused(pattern, "needs too many states")
        match node:
            case "^" | "$":
                return self._state(then, anchor=node)
            case _Sequence():
                for item in reversed(node):
                    then = self._build(item, then, pattern)
                return then
            case _Branches():
                return self._state(*[self._build(branch, then, pattern) for branch in node])
            case _Repeat():
                if node.most is None:
                    after = then
                    then = self._state()
                    self.exits[then] += [self._build(node.item, then, pattern), after]
                else:
                    end = then
                    for _ in range(node.most - node.least):
                        then = self._state(self._build(node.item, then, pattern), end)
                for _ in range(node.least):
                    then = self._build(node.item, then, pattern)
                return then
            case _:
                return self._state(then, test=node)


class _Sequence(list["Node"]):
    pass


class _Branches(list["Node"]):
    pass


class _Repeat:
    def __init__(self, item: "Node", least: int, most: int | None) -> None:
        self.item = item
        self.least = least
        self.most = most


class _Parser:
    """Reads one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def tree(self) -> "Node":
        if len(self._pattern) > MAX_PATTERN:
            raise self._fail(f"is longer than {MAX_PATTERN} characters")
        tree = self._branches()
        if self._at < len(self._pattern):
            raise self._fail("closes a group that it did not open")
        return tree

    def _fail(self, why: str) -> AdapterError:
        return _refused(self._pattern, why)

    def _next(self) -> str:
        """The next character, '' at the end."""
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._next()
        if not character:
            raise self._fail("ends too early")
        self._at += 1
        return character

    def _branches(self) -> "Node":
        branches = _Branches([self._sequence()])
        while self._next() == "|":
            self._at += 1
            branches.append(self._sequence())
        return branches if len(branches) > 1 else branches[0]

    def _sequence(self) -> "Node":
        items = _Sequence()
        while self._next() not in ("", "|", ")"):
            items.append(self._repeated(self._atom()))
        return items

    def _repeated(self, item: "Node") -> "Node":
        bounds = self._bounds()
        if bounds is None:
            return item
        if item in ("^", "$"):
            raise self._fail("repeats an anchor")
        if self._next() == "?":
            self._at += 1  # a lazy repetition matches the same paths
        if self._next() == "+" or self._bounds() is not None:
            raise self._fail("repeats a repetition")
        return _Repeat(item, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """How often the item before is to be repeated, if something says so here."""
        plain: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if bounds := plain.get(self._next()):
            self._at += 1
            return bounds
        count = _COUNT.match(self._pattern, self._at)
        if count is None or count[0] == "{}":
            return None
        self._at = count.end()
        least = int(count[1] or 0)
        most = least if count[2] is None else int(count[3]) if count[3] else None
        if most is not None and most < least:
            raise self._fail(f"repeats something {least} to {most} times")
        return least, most

    def _atom(self) -> "Node":
        if self._bounds() is not None:
            raise self._fail("has nothing to repeat")
        match character := self._take():
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return "\n".__ne__
            case "^" | "$":
                return character
            case "\\":
                if self._next() in ("A", "Z"):
                    return "^" if self._take() == "A" else "$"
                escaped = self._escaped()
                return escaped.__eq__ if isinstance(escaped, str) else escaped
            case _:
                return character.__eq__

    def _group(self) -> "Node":
        if self._next() == "?":
            name = _NAME.match(self._pattern, self._at)
            if name is None:
                raise self._fail(f"uses ({self._pattern[self._at : self._at + 3]}, which wgemma does not support")
            self._at = name.end()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._fail(f"nests deeper than {MAX_DEPTH} groups")
        tree = self._branches()
        if self._next() != ")":
            raise self._fail("does not close a group")
        self._at += 1
        self._depth -= 1
        return tree

    def _escaped(self) -> str | Test:
        """What follows a backslash: a character, or a test for a kind of character."""
        character = self._take()
        kind = _KINDS.get(character.lower())
        if kind is not None:
            return kind if character.islower() else lambda other: not kind(other)
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.isascii() and character.isalnum():
            raise self._fail(f"uses \\{character}, which wgemma does not support")
        return character

    def _class(self) -> Test:
        negated = self._next() == "^"
        self._at += negated
        begin = self._at
        characters: set[str] = set()
        ranges: list[tuple[str, str]] = []
        kinds: list[Test] = []
        while self._next() != "]" or self._at == begin:
            low = self._member()
            if self._next() == "-" and self._pattern[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._member()
                if not isinstance(low, str) or not isinstance(high, str) or low > high:
                    raise self._fail("has a range that is none")
                ranges.append((low, high))
            elif isinstance(low, str):
                characters.add(low)
            else:
                kinds.append(low)
        self._at += 1

        def test(character: str) -> bool:
            inside = (
                character in characters
                or any(low <= character <= high for low, high in ranges)
                or any(kind(character) for kind in kinds)
            )
            return inside != negated

        return test

    def _member(self) -> str | Test:
        character = self._take()
        return self._escaped() if character == "\\" else character


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_KINDS: dict[str, Test] = {"d": str.isdecimal, "w": _is_word, "s": str.isspace}


def _refused(pattern: str, why: str) -> AdapterError:
    return AdapterError(f"the pattern {pattern[:80]!r} cannot be used: it {why}.")
