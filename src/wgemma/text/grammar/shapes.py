"""What a schema says, sorted by type: a `Shape` is a conjunction of assertions, a schema is any of several shapes.

Subschemas of members stay places: they are read when their values are.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

from wgemma.text.grammar.document import Place
from wgemma.text.grammar.numbers import Bounds

ATOMS = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))

Places = tuple[Place, ...]


class Block(NamedTuple):
    """What one schema says about the members of an object. `additional` counts for those it does not name."""

    properties: dict[str, Place]
    patterns: list[tuple[str, Place]]
    additional: Place
    path: str
    closed: bool = False  # it says something about every member
    silent: bool = False  # it comes from a `not`, so it makes no member known to `unevaluatedProperties`


class ListBlock(NamedTuple):
    """What one schema says about the items of an array."""

    prefix: list[Place]
    rest: Place
    closed: bool = False
    silent: bool = False


class Contains(NamedTuple):
    place: Place
    low: int
    high: int | None


@dataclass
class Shape:
    types: frozenset[str] = ATOMS
    enum: list[Any] | None = None
    excluded: list[Any] = field(default_factory=list)
    bounds: Bounds = field(default_factory=Bounds)
    steps: list[Fraction] = field(default_factory=list)
    not_steps: list[Fraction] = field(default_factory=list)
    min_length: int = 0
    max_length: int | None = None
    patterns: list[tuple[str, Place]] = field(default_factory=list)
    not_patterns: list[tuple[str, Place]] = field(default_factory=list)
    formats: list[str] = field(default_factory=list)
    lists: list[ListBlock] = field(default_factory=list)
    min_items: int = 0
    max_items: int | None = None
    contains: list[Contains] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    names: list[Place] = field(default_factory=list)
    required: dict[str, None] = field(default_factory=dict)
    min_members: int = 0
    max_members: int | None = None
    path: str = "#"

    def copy(self) -> "Shape":
        return replace(
            self,
            excluded=[*self.excluded],
            bounds=self.bounds.copy(),
            steps=[*self.steps],
            not_steps=[*self.not_steps],
            patterns=[*self.patterns],
            not_patterns=[*self.not_patterns],
            formats=[*self.formats],
            lists=[*self.lists],
            contains=[*self.contains],
            blocks=[*self.blocks],
            names=[*self.names],
            required={**self.required},
        )

    def possible(self) -> bool:
        """False where no value can fit, as far as that shows at a glance."""
        types = set(self.types)
        if _crossed(self.min_length, self.max_length):
            types.discard("string")
        if _crossed(self.min_items, self.max_items):
            types.discard("array")
        if _crossed(max(self.min_members, len(self.required)), self.max_members):
            types.discard("object")
        self.types = frozenset(types)
        return bool(types) and self.enum != []

    def takes_all(self, atom: str) -> bool:
        """Whether every value of a type fits."""
        if atom not in self.types or self.enum is not None or self.excluded:
            return False
        match atom:
            case "integer" | "fraction":
                return self.bounds == Bounds() and not self.steps and not self.not_steps
            case "string":
                listed = self.patterns or self.not_patterns or self.formats
                return not listed and not self.min_length and self.max_length is None
            case "array":
                return not (self.lists or self.min_items or self.contains) and self.max_items is None
            case "object":
                return not (self.blocks or self.names or self.required or self.min_members) and self.max_members is None
        return True

    def known_members(self, since: int = 0) -> tuple[bool, frozenset[str], frozenset[str]]:
        """What the blocks from `since` on know: all members, or those with these names and patterns."""
        blocks = [block for block in self.blocks[since:] if not block.silent]
        names = frozenset(name for block in blocks for name in block.properties)
        return any(b.closed for b in blocks), names, frozenset(p for b in blocks for p, _ in b.patterns)

    def known_items(self, since: int = 0) -> tuple[bool, int]:
        """What the list blocks from `since` on know: all items, or the first ones."""
        blocks = [block for block in self.lists[since:] if not block.silent]
        return any(b.closed for b in blocks), max((len(b.prefix) for b in blocks), default=0)

    def names_in_order(self) -> list[str]:
        """Every member that is named, in the order in which members are written."""
        named = dict.fromkeys(name for block in self.blocks for name in block.properties)
        return [*(named | self.required)]

    def item(self, index: int) -> Places:
        """What the item at `index` must satisfy."""
        return tuple(block.prefix[index] if index < len(block.prefix) else block.rest for block in self.lists)

    @property
    def longest_prefix(self) -> int:
        return max((len(block.prefix) for block in self.lists), default=0)


def identity(value: Any) -> Any:
    """The same for equal JSON values, and only for those: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return frozenset((name, identity(inner)) for name, inner in value.items())
    return ("list", *map(identity, value)) if isinstance(value, list) else value


def fraction(value: int | float) -> Fraction:
    return Fraction(value if isinstance(value, int) else repr(value))


def _crossed(low: int, high: int | None) -> bool:
    return high is not None and low > high
