"""Numbers as JSON writes them, within bounds and as multiples: automata over their digits.

Integers are exact whatever their size. Decimals are compared digit by digit, so bounds are exact, too. Exponents are
written as `json.dumps` writes them, one digit before the point, and never where they could overflow; numbers with a
bound have them only for magnitudes below 10⁻⁴ or from 10¹⁶ on, numbers with a step never.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd, lcm

from wgemma.text.grammar.expressions import EMPTY, NOTHING, Node, Pool

_INTEGER_DIGITS, _DECIMALS = 309, 21
_DIGITS = {ord(digit): int(digit) for digit in "0123456789"}
_SMALL, _LARGE = Fraction(1, 10**4), 10**16  # between them, `json.dumps` writes no exponents
_LARGEST_LIST = 2000  # numbers written out one by one


@dataclass
class Bounds:
    """low ≤ x ≤ high, `<` where open; None is no bound."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False

    def at_least(self, value: Fraction, opened: bool) -> None:
        if self.low is None or (value, opened) > (self.low, self.low_open):
            self.low, self.low_open = value, opened

    def at_most(self, value: Fraction, opened: bool) -> None:
        if self.high is None or (-value, opened) > (-self.high, self.high_open):
            self.high, self.high_open = value, opened

    def contains(self, value: Fraction) -> bool:
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        return self.high is None or not (value > self.high or (self.high_open and value == self.high))

    def copy(self) -> "Bounds":
        return Bounds(self.low, self.high, self.low_open, self.high_open)


@dataclass
class NumberShape:
    """Which numbers: whole ones, others, or both."""

    whole: bool
    broken: bool
    bounds: Bounds = field(default_factory=Bounds)
    steps: list[Fraction] = field(default_factory=list)
    not_steps: list[Fraction] = field(default_factory=list)
    excluded: list[Fraction] = field(default_factory=list)


class Multiple(Node):
    """The rest of a number without a sign that is to be a multiple of `step` / 10^`places`. `rest` is what its digits
    leave so far; `written` counts those after the point, −1 before it."""

    __slots__ = ("places", "rest", "step_size", "written")

    def __init__(self, step: int, places: int, rest: int, written: int) -> None:
        missing = places - max(written, 0)
        super().__init__(rest * 10**missing % step == 0, 0)
        self.step_size, self.places, self.rest, self.written = step, places, rest, written

    def _step(self, symbol: int) -> Node:
        if symbol == 0x2E and self.written < 0:
            return self.pool.node(Multiple, self.step_size, self.places, self.rest, 0)
        digit = _DIGITS.get(symbol, -1)
        if digit < 0 or (self.written == self.places and digit):
            return NOTHING
        if self.written == self.places:
            return self
        rest = (self.rest * 10 + digit) % self.step_size
        return self.pool.node(Multiple, self.step_size, self.places, rest, self.written + (self.written >= 0))


class NumberWriter:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.digit = pool.letters(0x3FF << 0x30)
        self.nonzero = pool.letters(0x3FE << 0x30)
        self.point = pool.words([b"."])
        self.decimals = pool.join(self.point, pool.repeat(self.digit, 1, _DECIMALS))

    def write(self, shape: NumberShape) -> Node:
        if not shape.whole and not shape.broken:
            return NOTHING
        shape = replace(shape, steps=[_common(shape.steps)] if shape.steps else [])
        if any(step % other == 0 for step in shape.steps for other in shape.not_steps):
            return NOTHING
        listed = self._list(shape)
        if listed is not None:
            return listed
        usual = all(not value or _SMALL <= abs(value) < _LARGE for value in shape.excluded)
        # Numbers below the smallest step are multiples of none.
        simple = not shape.steps and all(step >= _SMALL for step in shape.not_steps) and usual
        low, high = shape.bounds.low, shape.bounds.high
        parts = []
        if high is None or high > 0 or (high == 0 and not shape.bounds.high_open):
            bounds = shape.bounds if low is not None and low >= 0 else Bounds(None, high, False, shape.bounds.high_open)
            parts.append(self._magnitude(shape, bounds, simple))
        if low is None or low < 0:
            turned = Bounds(
                None if high is None or high >= 0 else -high,
                None if low is None else -low,
                shape.bounds.high_open,
                shape.bounds.low_open,
            )
            turned.at_least(Fraction(0), not shape.broken)  # there is no integer −0
            negative = self._magnitude(shape, turned, simple)
            parts.append(self.pool.join(self.pool.words([b"-"]), negative))
        node = self.pool.either(parts)
        if shape.excluded:
            others = [self.pool.other_than(self._value(value)) for value in shape.excluded]
            node = self.pool.both([node, *others])
        return node

    def _list(self, shape: NumberShape) -> Node | None:
        """The multiples between the bounds one by one, if they are few: then nothing has to be searched for."""
        bounds, steps = shape.bounds, shape.steps
        if not steps or bounds.low is None or bounds.high is None:
            return None
        step = steps[0]
        first, last = -(-bounds.low // step), bounds.high // step
        if last - first > _LARGEST_LIST:
            return None
        values = [step * i for i in range(int(first), int(last) + 1)]
        fitting = [self._value(value) for value in values if fits_number(shape, value)]
        return self.pool.either(fitting)

    def _value(self, value: Fraction) -> Node:
        """One number; zeros may follow its decimals."""
        pool = self.pool
        sign = pool.words([b"-"]) if value < 0 else EMPTY
        whole, decimals = decimal_digits(abs(value))
        zeros = pool.letters(1 << 0x30)
        if decimals:
            rest = pool.join(pool.words([f".{decimals}".encode()]), pool.repeat(zeros, 0, _DECIMALS))
        else:
            rest = pool.optional(pool.join(self.point, pool.repeat(zeros, 1, _DECIMALS)))
            if not value:
                sign = pool.optional(pool.words([b"-"]))
        return pool.join(sign, pool.words([whole.encode()]), rest)

    def _magnitude(self, shape: NumberShape, bounds: Bounds, exponents: bool) -> Node:
        pool = self.pool
        if not shape.broken:
            low, high = bounds.low, bounds.high
            least = 0 if low is None else int(low // 1) + (bounds.low_open or low % 1 != 0)
            most = None if high is None else -(int(-high // 1)) - 1 if bounds.high_open or high % 1 else int(high)
            parts = [self._at_least(str(max(least, 0)))]
            if most is not None:
                parts.append(self._at_most(str(most)) if most >= 0 else NOTHING)
        else:
            parts = [pool.join(self._whole(), pool.optional(self.decimals))]
            if bounds.low is not None and (bounds.low > 0 or bounds.low_open):
                parts.append(self._from(bounds.low, bounds.low_open))
            if bounds.high is not None:
                parts.append(self._up_to(bounds.high, bounds.high_open))
            if not shape.whole:
                zeros = pool.repeat(pool.letters(1 << 0x30))
                rest = pool.join(self.point, zeros, self.nonzero, pool.repeat(self.digit))
                parts.append(pool.join(self._whole(), rest))
        for steps, wanted in ((shape.steps, True), (shape.not_steps, False)):
            for step in steps:
                places = len(decimal_digits(step)[1])
                multiple = pool.node(Multiple, int(step * 10**places), places, 0, -1)
                parts.append(multiple if wanted else pool.other_than(multiple))
        node = pool.both(parts)
        return pool.either([node, *self._exponents(bounds, shape)]) if exponents and shape.broken else node

    def _exponents(self, bounds: Bounds, shape: NumberShape) -> list[Node]:
        """Very small and very large numbers; all others can be written without."""
        pool, words = self.pool, self.pool.words
        mantissa = pool.join(self.nonzero, pool.optional(self.decimals), words([b"e", b"E"]))
        if bounds.low is None and bounds.high is None and shape.whole and not shape.excluded and not shape.not_steps:
            sizes = words([f"{i}".encode() for i in range(308)] + [f"0{i}".encode() for i in range(10)])
            zero = pool.join(words([b"0"]), pool.optional(self.decimals), words([b"e", b"E"]))
            return [pool.join(pool.either([mantissa, zero]), pool.optional(words([b"+", b"-"])), sizes)]
        parts = []
        if (bounds.low is None or bounds.low <= 0) and (bounds.high is None or bounds.high >= _SMALL):
            sizes = words([f"{i:02}".encode() for i in range(5, 308)] + [f"{i}".encode() for i in range(5, 10)])
            parts.append(pool.join(mantissa, words([b"-"]), sizes))
        if shape.whole and not shape.not_steps and bounds.high is None and (bounds.low is None or bounds.low <= _LARGE):
            sizes = words([f"{i}".encode() for i in range(17, 308)] + [b"16"])
            parts.append(pool.join(mantissa, pool.optional(words([b"+"])), sizes))
        return parts

    def _whole(self) -> Node:
        more = self.pool.repeat(self.digit, 0, _INTEGER_DIGITS - 1)
        return self.pool.either([self.pool.words([b"0"]), self.pool.join(self.nonzero, more)])

    def _at_least(self, digits: str) -> Node:
        """Integers from `digits` on."""
        if digits == "0":
            return self._whole()
        longer = self.pool.join(self.nonzero, self.pool.repeat(self.digit, len(digits), _INTEGER_DIGITS))
        return self.pool.either([longer, self._compared(digits, larger=True)])

    def _at_most(self, digits: str) -> Node:
        """Integers up to `digits`."""
        parts = [self._compared(digits, larger=False)]
        if len(digits) > 1:
            more = self.pool.repeat(self.digit, 0, len(digits) - 2)
            parts += [self.pool.words([b"0"]), self.pool.join(self.nonzero, more)]
        return self.pool.either(parts)

    def _compared(self, digits: str, *, larger: bool) -> Node:
        """Integers with as many digits that are equal, or larger or smaller."""
        pool = self.pool
        node: Node = EMPTY
        for i in range(len(digits) - 1, -1, -1):
            least = "1" if i == 0 and len(digits) > 1 else "0"
            others = self._beyond(digits[i], larger=larger, least=least)
            rest = pool.repeat(self.digit, len(digits) - 1 - i, len(digits) - 1 - i)
            node = pool.either([pool.join(others, rest), pool.join(pool.words([digits[i].encode()]), node)])
        return node

    def _beyond(self, digit: str, *, larger: bool, least: str = "0") -> Node:
        low, high = (ord(digit) + 1, 0x39) if larger else (ord(least), ord(digit) - 1)
        return self.pool.letters(sum(1 << code for code in range(low, high + 1)))

    def _from(self, bound: Fraction, opened: bool) -> Node:
        """Decimals from `bound` on."""
        pool = self.pool
        whole, decimals = decimal_digits(bound)
        beyond = pool.join(self._at_least(str(int(whole) + 1)), pool.optional(self.decimals))
        any_digits = pool.repeat(self.digit, 0, _DECIMALS)
        zeros = pool.repeat(pool.letters(1 << 0x30), 0, _DECIMALS)
        more = pool.join(zeros, self.nonzero, any_digits)  # anything above what is written
        node = more if opened else any_digits
        for digit in reversed(decimals):
            others = pool.join(self._beyond(digit, larger=True), any_digits)
            node = pool.either([others, pool.join(pool.words([digit.encode()]), node)])
        if not decimals:
            rest = pool.join(self.point, more) if opened else pool.optional(self.decimals)
        else:
            rest = pool.join(self.point, node)
        return pool.either([beyond, pool.join(pool.words([whole.encode()]), rest)])

    def _up_to(self, bound: Fraction, opened: bool) -> Node:
        """Decimals up to `bound`."""
        pool = self.pool
        whole, decimals = decimal_digits(bound)
        below: Node = NOTHING
        if whole != "0":
            below = pool.join(self._at_most(str(int(whole) - 1)), pool.optional(self.decimals))
        any_digits = pool.repeat(self.digit, 0, _DECIMALS)
        node: Node = NOTHING if opened else pool.repeat(pool.letters(1 << 0x30), 0, _DECIMALS)
        for digit in reversed(decimals):
            smaller = pool.join(self._beyond(digit, larger=False), any_digits)
            # Fewer digits are smaller, and the last digit is no zero; after it, equal may be too much.
            equal = NOTHING if node is NOTHING else pool.join(pool.words([digit.encode()]), pool.optional(node))
            node = pool.either([smaller, equal])
        if decimals:
            rest = pool.optional(pool.join(self.point, node))
        elif opened:
            rest = NOTHING
        else:
            rest = pool.optional(pool.join(self.point, pool.repeat(pool.letters(1 << 0x30), 1, _DECIMALS)))
        return pool.either([below, pool.join(pool.words([whole.encode()]), rest)])


def decimal_digits(value: Fraction) -> tuple[str, str]:
    """A number that is not negative as the digits before and after its point."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(int(value * 10**places)).rjust(places + 1, "0")
    return (digits[:-places], digits[-places:]) if places else (digits, "")


def fits_number(shape: NumberShape, value: Fraction) -> bool:
    """Whether a number is one that `shape` describes."""
    return (
        (shape.whole if value.denominator == 1 else shape.broken)
        and shape.bounds.contains(value)
        and all(value % step == 0 for step in shape.steps)
        and not any(value % step == 0 for step in shape.not_steps)
        and value not in shape.excluded
    )


def _common(steps: list[Fraction]) -> Fraction:
    """The least common multiple."""
    return Fraction(lcm(*(step.numerator for step in steps)), gcd(*(step.denominator for step in steps)))
