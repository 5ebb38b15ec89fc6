"""Schemas → shapes.

`ShapeReader.shapes` multiplies out anyOf, oneOf, if and dependencies, and gathers allOf and $ref into each shape. What
`not` says is turned into schemas without it (`negation`).
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import isfinite
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.document import TRUE, Document, Place
from wgemma.text.grammar.formats import FORMATS
from wgemma.text.grammar.negation import EXCLUDED, NEGATED, NOT_MULTIPLE, NOT_PATTERN, TYPES, negated
from wgemma.text.grammar.numbers import Bounds
from wgemma.text.grammar.shapes import ATOMS, Block, Contains, ListBlock, Shape, fraction, identity

_TYPE_ATOMS = {name: frozenset((name,)) for name in ATOMS - {"fraction"}} | {
    "number": frozenset(("integer", "fraction"))
}
_UNEVALUATED = {"unevaluatedProperties", "unevaluatedItems"}
_KEYWORDS = frozenset(
    [
        *("type", "enum", "const", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependencies", "dependentRequired", "dependentSchemas"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("contains", "minContains", "maxContains"),
        *("unevaluatedProperties", "unevaluatedItems", "$recursiveRef"),
        *(TYPES, EXCLUDED, NOT_PATTERN, NOT_MULTIPLE, NEGATED),
    ]
)

_MAX_SHAPES, _MAX_DEPTH, _MAX_WORK = 600, 100, 100_000


class ShapeReader:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.unchecked: dict[str, None] = {}
        # The types of which some value fits; replaced by whoever can tell.
        self.types_of: Callable[[Shape], frozenset[str]] = lambda shape: shape.types
        self._made: dict[tuple[int, ...], list[Shape]] = {}
        self._derived: dict[tuple[int, str], Place] = {}
        self._work = 0
        self._counting = 0  # how many schemas around this one ask what is known (unevaluated…)

    def shapes(self, places: Iterable[Place]) -> list[Shape]:
        """The shapes of what satisfies all of `places`."""
        places = tuple(places)
        key = tuple(id(place) for place in places)
        found = self._made.get(key)
        if found is None:
            found = [Shape(path=places[0].path if places else "#")]
            outside, self._counting = self._counting, 0
            for place in places:
                found = self._absorb(found, place, (), 0)
            self._counting = outside
            self._made[key] = found
        return found

    def _absorb(self, shapes: list[Shape], place: Place, chain: tuple[Place, ...], depth: int) -> list[Shape]:
        schema = place.schema
        if schema is True or not shapes:
            return shapes
        if schema is False:
            return []
        self._work += len(shapes)
        if self._work > _MAX_WORK:
            raise GrammarError(f"{place.path} takes too long to compile; the schema has too many combinations.")
        if depth > _MAX_DEPTH:
            raise GrammarError(f"{place.path} nests more than {_MAX_DEPTH} combinations; flatten it.")
        if place in chain:
            raise GrammarError(f"{place.path} refers to itself without anything in between, so it means nothing.")
        present = schema.keys() & _KEYWORDS
        if "$ref" in present and self.document.old:
            present &= {"$ref"}
        if "$recursiveRef" in present:
            raise place.error("$recursiveRef", "cannot be enforced; write $ref instead.")
        if not present & _UNEVALUATED and not (self._counting and NEGATED in present):
            return self._gather(shapes, place, present, chain, depth)
        self._counting += bool(present & _UNEVALUATED)
        result = []
        for shape in shapes:
            blocks, lists = len(shape.blocks), len(shape.lists)
            for found in self._gather([shape], place, present, chain, depth):
                if NEGATED in present:
                    found.blocks[blocks:] = [block._replace(silent=True) for block in found.blocks[blocks:]]
                    found.lists[lists:] = [block._replace(silent=True) for block in found.lists[lists:]]
                if "unevaluatedProperties" in present:
                    self._close_object(found, place, blocks)
                if "unevaluatedItems" in present:
                    self._close_array(found, place, lists)
                result.append(found)
        self._counting -= bool(present & _UNEVALUATED)
        return result

    def _close_object(self, shape: Shape, place: Place, since: int) -> None:
        """Adds unevaluatedProperties: what holds for the members that nothing else in `place` knows."""
        everything, names, patterns = shape.known_members(since)
        if not everything:
            rest = self.document.inside(place, "unevaluatedProperties")
            known = {name: TRUE for block in shape.blocks[since:] for name in block.properties if name in names}
            shape.blocks.append(Block(known, [(p, TRUE) for p in sorted(patterns)], rest, place.path, closed=True))

    def _close_array(self, shape: Shape, place: Place, since: int) -> None:
        everything, count = shape.known_items(since)
        if shape.contains:
            raise place.error("unevaluatedItems", "cannot be enforced together with contains; write items instead.")
        if not everything:
            shape.lists.append(ListBlock([TRUE] * count, self.document.inside(place, "unevaluatedItems"), closed=True))

    def _gather(
        self, shapes: list[Shape], place: Place, present: set[str], chain: tuple[Place, ...], depth: int
    ) -> list[Shape]:
        """Adds what one schema says, and those it combines."""
        for shape in shapes:
            self._assert(shape, place, present)
        shapes = [shape for shape in shapes if shape.possible()]
        way = (*chain, place)
        for part in self._conjuncts(place, present):
            shapes = self._absorb(shapes, part, way, depth + 1)
        for choice in self._choices(place, present):
            shapes = self._any(shapes, choice, way, depth)
        # If several branches of anyOf hold, what any of them knows counts; the shapes here are of one branch each.
        branches = self._counting and "anyOf" in present and NEGATED not in present
        if branches and len({(shape.known_members(), shape.known_items()) for shape in shapes}) > 1:
            raise place.error("anyOf", "cannot be enforced together with unevaluatedProperties or …Items around it.")
        if "oneOf" in present:
            shapes = self._one(shapes, place, way, depth)
        return shapes

    def _any(self, shapes: list[Shape], parts: list[Place], way: tuple[Place, ...], depth: int) -> list[Shape]:
        result: list[Shape] = []
        for part in parts:
            result += self._absorb([shape.copy() for shape in shapes], part, way, depth + 1)
            if len(result) > _MAX_SHAPES:
                raise GrammarError(f"{way[-1].path} has more than {_MAX_SHAPES} combinations; simplify it.")
        return result

    def _one(self, shapes: list[Shape], place: Place, way: tuple[Place, ...], depth: int) -> list[Shape]:
        """oneOf: each branch without what it shares with another."""
        branches = self._list(place, "oneOf")
        alone = [self._absorb([shape.copy() for shape in shapes], part, way, depth + 1) for part in branches]
        rivals: list[list[tuple[int, frozenset[str]]]] = [[] for _ in branches]
        for i, part in enumerate(branches):
            for j in range(i):
                shared = self._absorb([shape.copy() for shape in alone[j]], part, way, depth + 1) if alone[i] else []
                types = frozenset[str]().union(*map(self.types_of, shared))
                if types:
                    rivals[i].append((j, types))
                    rivals[j].append((i, types))
        whole = [frozenset(t for t in ATOMS if any(shape.takes_all(t) for shape in found)) for found in alone]
        result: list[Shape] = []
        for found, others in zip(alone, rivals, strict=True):
            found = [shape.copy() for shape in found]
            for other, types in others:
                # A type that the other branch takes as a whole is not for this one. (No branch with "properties" alone
                # would be of use otherwise: both take every value that is no object.)
                for shape in found:
                    shape.types -= types & whole[other]
                found = [shape for shape in found if shape.possible()]
                if types <= whole[other]:
                    continue
                try:
                    found = self._absorb(found, self._not(branches[other]), way, depth + 1)
                except GrammarError as problem:
                    raise place.error(
                        "oneOf", f"has branches that overlap, and it cannot be told how; write anyOf. ({problem})"
                    ) from None
            result += found
            if len(result) > _MAX_SHAPES:
                raise place.error("oneOf", f"has more than {_MAX_SHAPES} combinations; simplify it.")
        return result

    def _conjuncts(self, place: Place, present: set[str]) -> list[Place]:
        """The schemas that must hold as well."""
        parts = []
        if "$ref" in present:
            parts.append(self.document.target(place))
        if "$dynamicRef" in present:
            parts.append(self.document.dynamic_target(place))
        if "allOf" in present:
            parts += self._list(place, "allOf")
        if "not" in present:
            parts.append(self._not(self.document.inside(place, "not")))
        return parts

    def _choices(self, place: Place, present: set[str]) -> list[list[Place]]:
        """The lists of which one must hold each."""
        choices = []
        if "anyOf" in present:
            choices.append(self._list(place, "anyOf"))
        if "if" in present and (present & {"then", "else"} or self._counting):
            condition = self.document.inside(place, "if")
            branches = [self.document.inside(place, word) if word in present else TRUE for word in ("then", "else")]
            yes = self._derive(place, "then", lambda: {"allOf": [condition.schema, branches[0].schema]})
            no = self._derive(place, "else", lambda: {"allOf": [self._not(condition).schema, branches[1].schema]})
            choices.append([yes, no])
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            if keyword in present:
                for name, needs in _mapping(place, keyword).items():
                    choices.append(self._dependency(place, keyword, name, needs))
        return choices

    def _dependency(self, place: Place, keyword: str, name: str, needs: Any) -> list[Place]:
        if isinstance(needs, list):
            _check_names(place, keyword, needs)
            more: dict[str, Any] = {"required": [name, *needs]}
        else:
            more = {"required": [name], "allOf": [self.document.inside(place, keyword, name).schema]}
        return [
            self._derive(place, f"without {name}", lambda: {"properties": {name: False}}),
            self._derive(place, f"with {keyword} {name}", lambda: more),
        ]

    def _not(self, place: Place) -> Place:
        return self._derive(place, "not", lambda: negated(self.document, place))

    def _derive(self, place: Place, kind: str, make: Any) -> Place:
        key = (id(place), kind)
        if key not in self._derived:
            self._derived[key] = self.document.derived(make(), place)
        return self._derived[key]

    def _list(self, place: Place, keyword: str) -> list[Place]:
        branches = place.schema[keyword]
        if not isinstance(branches, list) or not branches:
            raise place.error(keyword, "is not a list of schemas.")
        return [self.document.inside(place, keyword, str(i)) for i in range(len(branches))]

    # -- assertions

    def _assert(self, shape: Shape, place: Place, present: set[str]) -> None:
        """Adds the keywords of one schema, except those that combine others."""
        schema = place.schema
        for keyword in present:
            value = schema[keyword]
            match keyword:
                case "type":
                    shape.types &= _types(place, value)
                case "enum" | "const":
                    values = [value] if keyword == "const" else value
                    if not isinstance(values, list):
                        raise place.error("enum", "is not a list.")
                    _restrict(shape, values)
                case "multipleOf":
                    shape.steps.append(_step(place, value))
                case "minLength":
                    shape.min_length = max(shape.min_length, _count(place, keyword))
                case "maxLength":
                    shape.max_length = _least(shape.max_length, _count(place, keyword))
                case "minItems":
                    shape.min_items = max(shape.min_items, _count(place, keyword))
                case "maxItems":
                    shape.max_items = _least(shape.max_items, _count(place, keyword))
                case "minProperties":
                    shape.min_members = max(shape.min_members, _count(place, keyword))
                case "maxProperties":
                    shape.max_members = _least(shape.max_members, _count(place, keyword))
                case "pattern":
                    shape.patterns.append((_text(place, keyword), place))
                case "format":
                    self._format(shape, place)
                case "required":
                    _check_names(place, keyword, value)
                    shape.required.update(dict.fromkeys(value))
                case "propertyNames":
                    shape.names.append(self.document.inside(place, keyword))
                case "uniqueItems" if value is not False:
                    self.unchecked[f"{place.path}/uniqueItems"] = None
                case "contains":
                    self._contains(shape, place)
        _bound(shape.bounds, place, present)
        if present & {"properties", "patternProperties", "additionalProperties"}:
            shape.blocks.append(self._block(place, present))
        if present & {"items", "prefixItems", "additionalItems"}:
            shape.lists.append(self._list_block(place, present))
        if TYPES in present:
            shape.types &= schema[TYPES]
        if EXCLUDED in present:
            shape.excluded += schema[EXCLUDED]
        if NOT_PATTERN in present:
            shape.not_patterns.append((schema[NOT_PATTERN], place))
        if NOT_MULTIPLE in present:
            shape.not_steps.append(_step(place, schema[NOT_MULTIPLE]))

    def _format(self, shape: Shape, place: Place) -> None:
        name = place.schema["format"]
        if isinstance(name, str) and name in FORMATS:
            shape.formats.append(name)
        else:
            self.unchecked[f"{place.path}/format"] = None

    def _contains(self, shape: Shape, place: Place) -> None:
        low = _count(place, "minContains") if "minContains" in place.schema else 1
        high = _count(place, "maxContains") if "maxContains" in place.schema else None
        shape.contains.append(Contains(self.document.inside(place, "contains"), low, high))

    def _block(self, place: Place, present: set[str]) -> Block:
        inside = self.document.inside
        properties = {
            name: inside(place, "properties", name)
            for name in (_mapping(place, "properties") if "properties" in present else ())
        }
        patterns = [
            (pattern, inside(place, "patternProperties", pattern))
            for pattern in (_mapping(place, "patternProperties") if "patternProperties" in present else ())
        ]
        additional = inside(place, "additionalProperties") if "additionalProperties" in present else TRUE
        return Block(properties, patterns, additional, place.path, "additionalProperties" in present)

    def _list_block(self, place: Place, present: set[str]) -> ListBlock:
        """`items` is the rest, or, as it used to be, the list of the first ones with `additionalItems` for the rest."""
        inside = self.document.inside
        first = "prefixItems" if "prefixItems" in present else "items"
        if first == "prefixItems" and not isinstance(place.schema[first], list):
            raise place.error(first, "is not a list of schemas.")
        if isinstance(place.schema.get(first), list):
            prefix = [inside(place, first, str(i)) for i in range(len(place.schema[first]))]
            rest = "items" if first == "prefixItems" else "additionalItems"
            return ListBlock(prefix, inside(place, rest) if rest in present else TRUE, rest in present)
        return ListBlock([], inside(place, "items") if "items" in present else TRUE, "items" in present)

    def negation(self, place: Place) -> Place:
        """The schema of what does not satisfy `place`."""
        return self._not(place)


def says_nothing(place: Place) -> bool:
    return place.schema is True or (isinstance(place.schema, dict) and not place.schema.keys() & _KEYWORDS)


def _is_finite(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() <= 1024
    return isinstance(value, float) and isfinite(value)


def _restrict(shape: Shape, values: list[Any]) -> None:
    if shape.enum is None:
        shape.enum = list(values)
    else:
        known = set(map(identity, values))
        shape.enum = [value for value in shape.enum if identity(value) in known]


def _least(first: int | None, second: int) -> int:
    return second if first is None else min(first, second)


def _types(place: Place, value: Any) -> frozenset[str]:
    names = value if isinstance(value, list) else [value]
    result: frozenset[str] = frozenset()
    for name in names:
        if not isinstance(name, str) or name not in _TYPE_ATOMS:
            raise place.error("type", f"is {str(name)[:40]!r}, which is no type of JSON.")
        result |= _TYPE_ATOMS[name]
    return result


def _bound(bounds: Bounds, place: Place, present: set[str]) -> None:
    """`exclusiveMinimum` is a number, or, as it used to be, a flag beside `minimum`."""
    schema = place.schema
    for word, other, add in (
        ("minimum", "exclusiveMinimum", bounds.at_least),
        ("maximum", "exclusiveMaximum", bounds.at_most),
    ):
        if word in present:
            add(_finite(place, word), schema.get(other) is True)
        if other in present and not isinstance(schema[other], bool):
            add(_finite(place, other), True)


def _finite(place: Place, keyword: str) -> Fraction:
    value = place.schema[keyword]
    if not _is_finite(value):
        raise place.error(keyword, "is not a number, or too large.")
    return fraction(value)


def _step(place: Place, value: Any) -> Fraction:
    if not _is_finite(value) or value <= 0:
        raise place.error("multipleOf", "is not a number above zero.")
    return fraction(value)


def _count(place: Place, keyword: str) -> int:
    value = place.schema[keyword]
    if not _is_finite(value) or value < 0 or value % 1:
        raise place.error(keyword, "is not a whole number of at least zero.")
    return int(value)


def _text(place: Place, keyword: str) -> str:
    value = place.schema[keyword]
    if not isinstance(value, str):
        raise place.error(keyword, "is not a string.")
    return value


def _mapping(place: Place, keyword: str) -> dict[str, Any]:
    value = place.schema[keyword]
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise place.error(keyword, "is not an object.")
    return value


def _check_names(place: Place, keyword: str, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise place.error(keyword, "is not a list of names.")
