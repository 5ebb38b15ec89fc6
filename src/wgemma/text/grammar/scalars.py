"""Strings, numbers, booleans and null of a shape, as expressions; and whether a given one fits."""

from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.expressions import NOTHING, Node, Repeat, matches
from wgemma.text.grammar.formats import FORMATS
from wgemma.text.grammar.numbers import NumberShape, NumberWriter, fits_number
from wgemma.text.grammar.pattern_trees import Tree, parse_pattern
from wgemma.text.grammar.patterns import PatternWriter
from wgemma.text.grammar.shapes import Shape, fraction
from wgemma.text.grammar.spelling import JsonSpelling


class ScalarWriter:
    def __init__(self, spelling: JsonSpelling) -> None:
        self.spelling = spelling
        self.pool = spelling.pool
        self.numbers = NumberWriter(self.pool)
        self.patterns = PatternWriter(spelling.text)
        self._trees: dict[str, Tree] = {}
        self._found: dict[str, Node] = {}

    def node(self, shape: Shape) -> Node:
        """Every value of the shape that is no array and no object."""
        pool = self.pool
        words = [b"null"] if "null" in shape.types and not _has(shape.excluded, None) else []
        if "boolean" in shape.types:
            words += [b"true"] if not _has(shape.excluded, True) else []
            words += [b"false"] if not _has(shape.excluded, False) else []
        parts = [pool.words(words), self.checked(self.numbers.write(_numbers(shape)), shape, "a number")]
        if "string" in shape.types:
            content = self.content(shape)
            if content is not NOTHING:
                parts.append(self.spelling.string(content))
        return pool.either(parts)

    def content(self, shape: Shape) -> Node:
        """The strings of the shape, without their quotes."""
        pool, text = self.pool, self.spelling.text
        parts = [self.found_in(pattern, f"{place.path}/pattern") for pattern, place in shape.patterns]
        parts += [self.patterns.full(self._tree(FORMATS[name])) for name in shape.formats]
        parts += [
            pool.other_than(self.found_in(pattern, f"{place.path}/pattern")) for pattern, place in shape.not_patterns
        ]
        parts += [pool.other_than(text.exactly(value)) for value in shape.excluded if isinstance(value, str)]
        low, high = shape.min_length, shape.max_length
        if len(parts) == 1 and isinstance(parts[0], Repeat) and _is_character(parts[0].node):
            # Characters of one kind: their count is the length, and there is nothing to search for.
            found = parts[0]
            high = found.high if high is None else high if found.high is None else min(high, found.high)
            low = max(low, found.low)
            return NOTHING if high is not None and low > high else pool.repeat(found.node, low, high)
        if low or high is not None or not parts or shape.not_patterns or shape.excluded:
            parts.append(pool.repeat(text.any, low, high))
        return self.checked(pool.both(parts), shape, "a string")

    def found_in(self, pattern: str, path: str) -> Node:
        """The strings a pattern is found in."""
        if pattern not in self._found:
            try:
                self._found[pattern] = self.checked(self.patterns.search(self._tree(pattern)), None, path)
            except GrammarError as problem:
                raise GrammarError(f"{path} cannot be enforced: {problem}") from None
        return self._found[pattern]

    def _tree(self, pattern: str) -> Tree:
        if pattern not in self._trees:
            self._trees[pattern] = parse_pattern(pattern)
        return self._trees[pattern]

    def checked(self, node: Node, shape: Shape | None, what: str) -> Node:
        if self.pool.gave_up:
            self.pool.gave_up = False
            where = what if shape is None else f"{shape.path} asks for {what} that"
            raise GrammarError(
                f"{where} is too hard to find; its pattern, length, range or multipleOf leave no simple way."
            )
        return node

    def fits(self, shape: Shape, value: Any) -> bool:
        """Whether a scalar satisfies the shape; its `enum` is not looked at."""
        if not isinstance(value, str | int | float | None):
            raise GrammarError(f"{shape.path}/enum has a value that is not JSON.")
        if _has(shape.excluded, value):
            return False
        if value is None:
            return "null" in shape.types
        if isinstance(value, bool):
            return "boolean" in shape.types
        if isinstance(value, str):
            return "string" in shape.types and (
                _is_free(shape) or matches(self.content(shape), self.spelling.text.spell(value))
            )
        return fits_number(_numbers(shape), fraction(value))


def _numbers(shape: Shape) -> NumberShape:
    excluded = [
        fraction(value) for value in shape.excluded if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    whole, broken = "integer" in shape.types, "fraction" in shape.types
    return NumberShape(whole, broken, shape.bounds, shape.steps, shape.not_steps, excluded)


def _has(values: list[Any], value: Any) -> bool:
    return any(other is value for other in values) if value is None or isinstance(value, bool) else False


def _is_free(shape: Shape) -> bool:
    """Whether the shape takes any string."""
    listed = shape.patterns, shape.not_patterns, shape.formats, shape.excluded
    return not any(listed) and shape.min_length == 0 and shape.max_length is None


def _is_character(node: Node) -> bool:
    """Whether a node was made from a set of characters: exactly one character, however it is written."""
    return node in node.pool.single
