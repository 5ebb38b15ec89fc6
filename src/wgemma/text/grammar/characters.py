"""Sets of characters as expressions over bytes: plain UTF-8, or as JSON writes them inside a string.

A set is a sorted tuple of ranges of code points, both ends included. Half surrogates belong to none. JSON escapes are
those `json.dumps` writes, with and without `ensure_ascii`; hexadecimal digits may be capitals.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable

from wgemma.text.grammar.expressions import EMPTY, NOTHING, Node, Pool

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
_SHORT = {0x22: b'\\"', 0x5C: b"\\\\", 0x08: b"\\b", 0x0C: b"\\f", 0x0A: b"\\n", 0x0D: b"\\r", 0x09: b"\\t"}
_LEADS = ((0xC2, 0xDF, 1, 0x1F, 0x80), (0xE0, 0xEF, 2, 0x0F, 0x800), (0xF0, 0xF4, 3, 0x07, 0x10000))
_CONTINUATIONS = {0x80 + value: value for value in range(64)}
_DIGITS = {ord(digit): int(digit, 16) for digit in "0123456789abcdefABCDEF"}


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted, merged, without half surrogates."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return minus(tuple(result), ((0xD800, 0xDFFF),))


def inverted(ranges: Ranges) -> Ranges:
    return minus(((0, 0xD7FF), (0xE000, LAST)), ranges)


def minus(ranges: Ranges, others: Ranges) -> Ranges:
    result = []
    for low, high in ranges:
        for start, end in others:
            if end < low or start > high:
                continue
            if start > low:
                result.append((low, start - 1))
            low = end + 1
            if low > high:
                break
        if low <= high:
            result.append((low, high))
    return tuple(result)


def within(ranges: Ranges, low: int, high: int, base: int | None = None) -> Ranges:
    """The part of `ranges` from `low` to `high`, counted from `base` or `low`."""
    base = low if base is None else base
    start = max(bisect_left(ranges, (low,)) - 1, 0)
    end = bisect_left(ranges, (high + 1,), start)
    return tuple([(max(a, low) - base, min(b, high) - base) for a, b in ranges[start:end] if b >= low])


ALL: Ranges = ((0, 0xD7FF), (0xE000, LAST))


class CodePoint(Node):
    """One character of a set, in UTF-8."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(False, 1)
        self.ranges = ranges

    def _step(self, symbol: int) -> Node:
        if symbol < 0x80:
            return EMPTY if within(self.ranges, symbol, symbol) else NOTHING
        for first, last, more, bits, least in _LEADS:
            if first <= symbol <= last:
                start = (symbol & bits) << 6 * more
                end = start + (1 << 6 * more) - 1
                rest = within(self.ranges, max(start, least), end, start)
                return self.pool.node(Digits, rest, more, 6) if rest else NOTHING
        return NOTHING


class Digits(Node):
    """A number from a set, as `count` continuation bytes of UTF-8 (`bits` = 6) or hexadecimal digits (`bits` = 4)."""

    __slots__ = ("bits", "count", "ranges")

    def __init__(self, ranges: Ranges, count: int, bits: int) -> None:
        super().__init__(False, count)
        self.ranges, self.count, self.bits = ranges, count, bits

    def _step(self, symbol: int) -> Node:
        digit = (_CONTINUATIONS if self.bits == 6 else _DIGITS).get(symbol, -1)
        if digit < 0:
            return NOTHING
        shift = self.bits * (self.count - 1)
        rest = within(self.ranges, digit << shift, ((digit + 1) << shift) - 1)
        if not rest:
            return NOTHING
        return self.pool.node(Digits, rest, self.count - 1, self.bits) if self.count > 1 else EMPTY


class PlainText:
    """Characters as they are."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.any = self.characters(ALL)
        self.texts = pool.repeat(self.any)

    def characters(self, ranges: Ranges) -> Node:
        if not ranges:
            return NOTHING
        node = self.pool.node(CodePoint, ranges)
        self.pool.single.add(node)
        return node

    def spell(self, text: str) -> bytes:
        """One way to write a text."""
        return text.encode(errors="surrogatepass")

    def any_of(self, texts: Iterable[str]) -> Node:
        """Any of these texts, however it is written."""
        simple = [text for text in texts if text.isascii() and text.isprintable()]
        others = [self.exactly(text) for text in texts if not (text.isascii() and text.isprintable())]
        return self.pool.either([self.pool.words(map(self.spell, simple)), *others])

    def exactly(self, text: str) -> Node:
        """A text, however it is written."""
        return self.pool.join(*(self.characters(((ord(char), ord(char)),)) for char in text))


class JsonText(PlainText):
    """Characters inside a JSON string."""

    def __init__(self, pool: Pool) -> None:
        self._made: dict[Ranges, Node] = {}
        super().__init__(pool)
        pool.universal.add(self.texts)

    def characters(self, ranges: Ranges) -> Node:
        found = self._made.get(ranges)
        if found is None:
            found = self._made[ranges] = self._write(ranges)
            self.pool.single.add(found)
        return found

    def spell(self, text: str) -> bytes:
        return json.dumps(text)[1:-1].encode()

    def _write(self, ranges: Ranges) -> Node:
        plain = minus(ranges, ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))
        short = tuple((code, code) for code in sorted(_SHORT))
        long = minus(minus(ranges, short), ((0x20, 0x7E),))
        basic = minus(long, ((0x10000, LAST),))
        pool = self.pool
        parts = [super().characters(plain)]
        parts += [pool.words([text for code, text in _SHORT.items() if within(ranges, code, code)])]
        if basic:
            parts.append(pool.join(pool.words([b"\\u"]), pool.node(Digits, basic, 4, 4)))
        for low, high in minus(long, ((0, 0xFFFF),)):
            parts += self._pairs(low - 0x10000, high - 0x10000)
        return pool.either(parts)

    def _pairs(self, low: int, high: int) -> list[Node]:
        """The characters 0x10000 + low … high as pairs of surrogates: a ragged start, whole rows, a ragged end."""
        pieces = []
        while low <= high:
            whole = low % 0x400 == 0 and high - low >= 0x3FF
            end = (high + 1) // 0x400 * 0x400 - 1 if whole else min(low | 0x3FF, high)
            pieces.append((low, end))
            low = end + 1
        escape, pool = self.pool.words([b"\\u"]), self.pool
        return [
            pool.join(
                escape,
                pool.node(Digits, ((0xD800 + (a >> 10), 0xD800 + (b >> 10)),), 4, 4),
                escape,
                pool.node(Digits, ((0xDC00 + (a & 0x3FF), 0xDC00 + (b & 0x3FF)),), 4, 4),
            )
            for a, b in pieces
        ]
