"""The regular expressions people write → a tree.

Patterns follow ECMA-262 as JSON Schema asks: `\\d`, `\\w` and `\\b` know ASCII only. What a finite automaton cannot do
(back-references, lookbehind, word boundaries) is refused by name, and so is what would be slow to follow.

tree = ("set", ranges) | ("cat", [tree]) | ("alt", [tree]) | ("rep", tree, low, high | None)
     | ("start",) | ("end",) | ("look", tree, positive)
"""

import unicodedata
from functools import cache
from itertools import groupby
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.characters import ALL, LAST, Ranges, inverted, minus, ranges_of

Tree = tuple[Any, ...]

_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ranges_of(
    [(9, 13), (0x2000, 0x200A), (0x2028, 0x2029)]
    + [(code, code) for code in (0x20, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF)]
)
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_NEWLINE: Ranges = ((10, 10),)
_HEX = frozenset("0123456789abcdefABCDEF")

_MAX_LENGTH, _MAX_DEPTH, _MAX_COUNT = 20_000, 60, 100_000
_MAX_THREADS = 3000  # places of a pattern that one text may be at, at the same time


def parse_pattern(pattern: str, *, python: bool = False) -> Tree:
    """The tree of a pattern. `python`: the dot matches everything but a newline, as in `re`."""
    if len(pattern) > _MAX_LENGTH:
        raise GrammarError(f"a pattern of {len(pattern)} characters is too long; the limit is {_MAX_LENGTH}.")
    tree = _Parser(pattern, _NEWLINE if python else _LINE_ENDS).whole()
    check_threads(tree, f"the pattern {pattern[:60]!r}")
    return tree


def check_threads(tree: Tree, what: str) -> None:
    """Refuses a tree that would be slow to follow."""
    threads, _, _ = _cost(tree)
    if threads > _MAX_THREADS:
        raise GrammarError(
            f"{what} is too ambiguous: a text can be at {threads} places of it at once. Use smaller counts, or anchors."
        )


class _Parser:
    def __init__(self, pattern: str, line_ends: Ranges) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0
        self.dot = minus(ALL, line_ends)

    def error(self, complaint: str) -> GrammarError:
        return GrammarError(f"the pattern {self.text[:60]!r} {complaint} at character {self.at}.")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def whole(self) -> Tree:
        tree = self.alternatives()
        if self.at < len(self.text):
            raise self.error("has a ) without its (")
        return tree

    def alternatives(self) -> Tree:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"nests deeper than {_MAX_DEPTH} groups")
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else ("alt", parts)

    def sequence(self) -> Tree:
        parts = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.counted(self.atom()))
        return parts[0] if len(parts) == 1 else ("cat", parts)

    def atom(self) -> Tree:
        char = self.peek()
        self.at += 1
        match char:
            case ".":
                return ("set", self.dot)
            case "^":
                return ("start",)
            case "$":
                return ("end",)
            case "(":
                return self.group()
            case "[":
                return ("set", self.set())
            case "\\":
                return self.escape()
            case "*" | "+" | "?":
                self.at -= 1
                raise self.error(f"has a {char} with nothing before it")
        return ("set", ranges_of([(ord(char), ord(char))]))

    def group(self) -> Tree:
        look = None
        if self.take("?"):
            if self.take("="):
                look = True
            elif self.take("!"):
                look = False
            elif self.text.startswith(("<=", "<!"), self.at):
                raise self.error("has a lookbehind, which cannot be enforced,")
            elif self.take("P<") or self.take("<"):
                end = self.text.find(">", self.at)
                if end < 0:
                    raise self.error("has a group name without its >")
                self.at = end + 1
            elif not self.take(":"):
                raise self.error("has a kind of group or flag that cannot be enforced")
        tree = self.alternatives()
        if not self.take(")"):
            raise self.error("has a ( without its )")
        return tree if look is None else ("look", tree, look)

    def counted(self, tree: Tree) -> Tree:
        if self.take("*"):
            low, high = 0, None
        elif self.take("+"):
            low, high = 1, None
        elif self.take("?"):
            low, high = 0, 1
        elif (counts := self.braces()) is not None:
            low, high = counts
        else:
            return tree
        if tree[0] in ("start", "end", "look"):
            raise self.error("repeats an anchor or a lookahead")
        self.take("?")  # lazy or not, the language is the same
        return ("rep", tree, low, high)

    def braces(self) -> tuple[int, int | None] | None:
        """{m}, {m,} or {m,n}. Any other brace is itself."""
        if self.peek() != "{":
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, self.at)].partition(",")
        if end < 0 or not low.isdecimal() or not (high.isdecimal() or not high):
            return None
        least = _count(low, self)
        most = least if not comma else _count(high, self) if high else None
        if most is not None and most < least:
            raise self.error("has a count that ends before it starts")
        self.at = end + 1
        return least, most

    def escape(self) -> Tree:
        if self.at >= len(self.text):
            raise self.error("ends with a backslash")
        char = self.peek()
        if char == "b" or char == "B":
            raise self.error(f"has \\{char}, which cannot be enforced,")
        if char == "A" or char == "Z":
            self.at += 1
            return ("start",) if char == "A" else ("end",)
        if char in "123456789k":
            raise self.error("has a back-reference, which cannot be enforced,")
        return ("set", self.escaped())

    def escaped(self) -> Ranges:
        """What follows a backslash, as a set."""
        char = self.peek()
        self.at += 1
        if char.lower() in _CLASSES:
            found = _CLASSES[char.lower()]
            return found if char.islower() else inverted(found)
        if char in ("p", "P"):
            found = self.property()
            return found if char == "p" else inverted(found)
        code = ord(char)
        if char in _CONTROLS:
            code = _CONTROLS[char]
        elif char == "c" and self.peek().isascii() and self.peek().isalpha():
            code = ord(self.peek()) % 32
            self.at += 1
        elif char == "x":
            code = self.hexadecimal(2)
        elif char == "u" and self.take("{"):
            end = self.text.find("}", self.at)
            code = self.hexadecimal(max(end - self.at, 1))
            self.at += 1
        elif char == "u":
            code = self.hexadecimal(4)
            if 0xD800 <= code < 0xDC00 and self.take("\\u"):
                code = 0x10000 + ((code - 0xD800) << 10) + (self.hexadecimal(4) & 0x3FF)
        elif char == "":
            raise self.error("ends with a backslash")
        elif char.isascii() and char.isalnum():
            raise self.error(f"has the unknown escape \\{char}")
        if code > LAST:
            raise self.error("names a character beyond Unicode")
        return ranges_of([(code, code)])

    def hexadecimal(self, count: int) -> int:
        digits = self.text[self.at : self.at + count]
        if len(digits) < count or not set(digits) <= _HEX or count > 8:
            raise self.error("has an escape without its hexadecimal digits")
        self.at += count
        return int(digits, 16)

    def property(self) -> Ranges:
        end = self.text.find("}", self.at)
        if self.peek() != "{" or end < 0:
            raise self.error("has \\p without {…}")
        name = self.text[self.at + 1 : end].removeprefix("General_Category=").removeprefix("gc=")
        found = ranges_of([pair for kind, pairs in _categories().items() if _is_kind(kind, name) for pair in pairs])
        if not found:
            raise self.error(f"has \\p{{{name[:30]}}}, which is no general category,")
        self.at = end + 1
        return found

    def set(self) -> Ranges:
        """The inside of [ ]."""
        negated = self.take("^")
        pairs: list[tuple[int, int]] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                raise self.error("has a [ without its ]")
            first = self.member()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", "") and _single(first):
                self.at += 1
                last = self.member()
                if not _single(last):
                    pairs += [*first, (45, 45), *last]
                elif last[0][0] < first[0][0]:
                    raise self.error("has a range that ends before it starts")
                else:
                    pairs.append((first[0][0], last[0][0]))
            else:
                pairs += first
        found = ranges_of(pairs)
        return inverted(found) if negated else found

    def member(self) -> Ranges:
        char = self.peek()
        self.at += 1
        if char == "\\":
            if self.take("b"):
                return ((8, 8),)
            if self.take("-"):
                return ((45, 45),)
            return self.escaped()
        return ((ord(char), ord(char)),)


def _count(digits: str, parser: _Parser) -> int:
    if len(digits) > 6 or int(digits) > _MAX_COUNT:
        raise parser.error(f"counts further than {_MAX_COUNT}")
    return int(digits)


def _single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """The runs of each general category of Unicode."""
    runs: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for kind, group in groupby(map(unicodedata.category, map(chr, range(LAST + 1)))):
        end = start + sum(1 for _ in group)
        runs.setdefault(kind, []).append((start, end - 1))
        start = end
    return runs


_LONG_NAMES = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z", "Mark": "M"} | {
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Decimal_Number": "Nd",
    "Other": "C",
}


def _is_kind(kind: str, name: str) -> bool:
    name = _LONG_NAMES.get(name, name)
    return kind == name or (len(name) == 1 and kind[0] == name)


def _cost(tree: Tree) -> tuple[int, int, int | None]:
    """How many places of the tree a text can be at: at once, and in all; and the one length it matches, if one."""
    match tree:
        case ("set", _):
            return 1, 1, 1
        case ("cat", parts):
            threads, places = 1, 0
            length: int | None = 0
            for part in parts:
                inner, width, size = _cost(part)
                # After something of no fixed length, a part can begin anywhere, so all its places may be live.
                threads = threads + (inner if length is not None else width)
                places += width
                length = None if length is None or size is None else length + size
            return threads, places, length
        case ("alt", parts):
            costs = [_cost(part) for part in parts]
            sizes = {size for _, _, size in costs}
            return sum(c[0] for c in costs), sum(c[1] for c in costs), sizes.pop() if len(sizes) == 1 else None
        case ("rep", part, low, high):
            inner, width, size = _cost(part)
            count = low + 1 if high is None else max(high, 1)
            threads = inner if size is not None or count == 1 else width * count
            return threads, width * count, size * low if size is not None and low == high else None
        case ("look", part, _):
            inner, width, _ = _cost(part)
            return inner, width, 0
        case ("rule", _):
            return 1, 1, None
    return 1, 1, 0
