"""JSON Schema → a grammar.

Every set of schemas that one value must satisfy becomes a rule. Rules that no finite text satisfies are found before
anything is written (`_mark_productive`), so what remains has no dead ends.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from wgemma.errors import GrammarError
from wgemma.text.grammar.automaton import Grammar
from wgemma.text.grammar.document import Document, Place
from wgemma.text.grammar.expressions import NOTHING, Node, Pool, matches
from wgemma.text.grammar.members import ArrayShape, Extra, Item, Member, ObjectShape, ValueRule, Wanted
from wgemma.text.grammar.reading import ShapeReader, says_nothing
from wgemma.text.grammar.scalars import ScalarWriter
from wgemma.text.grammar.shapes import Shape, identity
from wgemma.text.grammar.spelling import JsonSpelling

_MAX_RULES, _MAX_EXTRAS, _MAX_PREFIX, _MAX_CONTAINED = 10_000, 64, 10_000, 2_000
_DEPTH = 64  # how deep values nest that no schema describes
_LOOK = 4  # how deep to look for a contradiction between branches of oneOf
_MAX_BYTES = 4_000_000


def compile_schema(schema: Any) -> Grammar:
    """The grammar of the JSON that satisfies `schema`: an object, true, false, or one of these as JSON text."""
    if isinstance(schema, str | bytes):
        schema = _parsed(schema)
    pool = Pool()
    compiler = SchemaCompiler(schema, JsonSpelling(pool))
    rule = compiler.rule([compiler.document.root])
    compiler.finish(rule)
    return Grammar(pool, rule.body, compiler.unchecked)


def compile_json() -> Grammar:
    """The grammar of any JSON object."""
    return compile_schema({"type": "object"})


def _parsed(text: str | bytes) -> Any:
    if len(text) > _MAX_BYTES:
        raise GrammarError(f"a schema of {len(text)} bytes is too large; the limit is {_MAX_BYTES}.")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise GrammarError(f"the schema is not JSON: {str(problem)[:200]}.") from None


class SchemaRule(ValueRule):
    """A rule made of scalars, objects and arrays."""

    def __init__(self, compiler: "SchemaCompiler", places: tuple[Place, ...]) -> None:
        super().__init__(places[0].path if places else "#")
        self.compiler = compiler
        self.places = places
        self.scalars: Node = NOTHING
        self.containers: list[ObjectShape | ArrayShape] = []

    def build(self) -> Node:
        nodes = [container.node() for container in self.containers if container.possible()]
        return self.compiler.pool.either([self.scalars, *nodes])


class AnyRule(ValueRule):
    """Any JSON value, nested to a limit."""

    productive = True

    def __init__(self, compiler: "SchemaCompiler", depth: int) -> None:
        super().__init__("any")
        self.compiler = compiler
        self.depth = depth

    def build(self) -> Node:
        compiler = self.compiler
        parts = [compiler.scalars.node(Shape())]
        if self.depth < _DEPTH:
            inner = compiler.any(self.depth + 1)
            extras = [Extra(compiler.spelling.key_text, inner)]
            parts.append(ObjectShape(compiler.spelling, [], extras, 0, None).node())
            parts.append(ArrayShape(compiler.spelling, [[Item(inner, ())]], 0, None, []).node())
        return compiler.pool.either(parts)


class SchemaCompiler:
    def __init__(self, schema: Any, spelling: JsonSpelling) -> None:
        self.spelling = spelling
        self.pool = spelling.pool
        self.document = Document(schema)
        self.reader = ShapeReader(self.document)
        self.reader.types_of = self._types_of
        self.scalars = ScalarWriter(spelling)
        self._rules: dict[tuple[int, ...], SchemaRule] = {}
        self._any: dict[int, AnyRule] = {}
        self._waiting: list[SchemaRule] = []
        self._judged: dict[tuple[int, ...], bool] = {}

    @property
    def unchecked(self) -> list[str]:
        return sorted(self.reader.unchecked)

    def any(self, depth: int = 0) -> AnyRule:
        if depth not in self._any:
            self._any[depth] = AnyRule(self, depth)
        return self._any[depth]

    def rule(self, places: Iterable[Place]) -> ValueRule:
        """The rule of what satisfies all `places`."""
        unique = _unique(places)
        if not unique:
            return self.any()
        key = tuple(map(id, unique))
        found = self._rules.get(key)
        if found is None:
            if len(self._rules) >= _MAX_RULES:
                raise GrammarError(f"the schema needs more than {_MAX_RULES} rules; simplify it.")
            found = self._rules[key] = SchemaRule(self, unique)
            self._waiting.append(found)
        return found

    def finish(self, root: ValueRule) -> None:
        """Compiles all rules that can be reached, and refuses a schema that nothing satisfies."""
        while self._waiting:
            self._compile(self._waiting.pop())
        self._mark_productive()
        if not root.productive:
            barren = [rule for rule in self._rules.values() if not rule.productive]
            culprits = [rule for rule in barren if not any(c.rules() for c in rule.containers)]
            place = (culprits or barren)[-1].name
            raise GrammarError(f"nothing satisfies the schema: it contradicts itself, or never ends, at {place}.")

    def _mark_productive(self) -> None:
        """A rule is productive if it has a scalar, or a container whose members are; so until nothing changes."""
        users: dict[ValueRule, list[SchemaRule]] = {}
        for rule in self._rules.values():
            for container in rule.containers:
                for other in container.rules():
                    users.setdefault(other, []).append(rule)
        waiting = list(self._rules.values())
        while waiting:
            rule = waiting.pop()
            if rule.productive:
                continue
            if rule.scalars is not NOTHING or any(container.possible() for container in rule.containers):
                rule.productive = True
                waiting += users.get(rule, ())

    def _compile(self, rule: SchemaRule) -> None:
        scalars = []
        for shape in self.reader.shapes(rule.places):
            if shape.enum is not None:
                scalars.append(self.spelling.literals([value for value in shape.enum if self.fits(shape, value)]))
                continue
            self._exclude_containers(shape)
            scalars.append(self.scalars.node(shape))
            if "object" in shape.types:
                rule.containers.append(self._object(shape))
            if "array" in shape.types:
                rule.containers.append(self._array(shape))
        rule.scalars = self.pool.either(scalars)

    def _exclude_containers(self, shape: Shape) -> None:
        for value in shape.excluded:
            if isinstance(value, list) and "array" in shape.types:
                if value:
                    raise GrammarError(f"{shape.path}/not excludes a list, which cannot be enforced.")
                shape.min_items = max(shape.min_items, 1)
            if isinstance(value, dict) and "object" in shape.types:
                if value:
                    raise GrammarError(f"{shape.path}/not excludes an object, which cannot be enforced.")
                shape.min_members = max(shape.min_members, 1)

    # -- members

    def _object(self, shape: Shape) -> ObjectShape:
        names = self._names(shape)
        members = []
        for name in shape.names_in_order():
            places = self.member(shape, name, names)
            if places is not None or name in shape.required:
                members.append(Member(name, self.rule((_FALSE,) if places is None else places), name in shape.required))
        return ObjectShape(self.spelling, members, self._extras(shape, names), shape.min_members, shape.max_members)

    def _names(self, shape: Shape) -> Node | None:
        """What propertyNames allows, without quotes; None is everything."""
        if not shape.names:
            return None
        return self._strings(tuple(shape.names))

    def _strings(self, places: tuple[Place, ...]) -> Node:
        nodes = []
        for found in self.reader.shapes(places):
            if found.enum is not None:
                fitting = [value for value in found.enum if isinstance(value, str) and self.fits(found, value)]
                nodes += [self.spelling.text.exactly(value) for value in fitting]
            elif "string" in found.types:
                nodes.append(self.scalars.content(found))
        return self.pool.either(nodes)

    def member(self, shape: Shape, name: str, names: Node | None) -> tuple[Place, ...] | None:
        """What the member `name` must satisfy; None if it cannot be there."""
        text = self.spelling.text.spell(name)
        if names is not None and not matches(names, text):
            return None
        places = []
        for block in shape.blocks:
            found = [block.properties[name]] if name in block.properties else []
            found += [place for pattern, place in block.patterns if matches(self._pattern(pattern, block.path), text)]
            places += found or [block.additional]
        return None if any(place.schema is False for place in places) else tuple(places)

    def _pattern(self, pattern: str, path: str) -> Node:
        return self.scalars.found_in(pattern, f"{path}/patternProperties")

    def _extras(self, shape: Shape, names: Node | None) -> list[Extra]:
        """The members that are not named, by the patterns their keys match."""
        pool, text = self.pool, self.spelling.text
        patterns = {pattern: block.path for block in shape.blocks for pattern, _ in block.patterns}
        if not patterns and any(block.additional.schema is False for block in shape.blocks):
            return []
        named = shape.names_in_order()
        taken = [pool.other_than(text.any_of(named))] if named else []
        kinds: list[tuple[Node, frozenset[str]]] = [
            (pool.both([self.spelling.key_text, *([names] if names else []), *taken]), frozenset())
        ]
        for pattern, path in patterns.items():
            found = self._pattern(pattern, path)
            split = [(pool.both([keys, found]), matched | {pattern}) for keys, matched in kinds]
            split += [(pool.both([keys, pool.other_than(found)]), matched) for keys, matched in kinds]
            kinds = [(keys, matched) for keys, matched in split if keys is not NOTHING]
            if len(kinds) > _MAX_EXTRAS:
                raise GrammarError(f"{shape.path}/patternProperties overlap in too many ways; simplify them.")
        self.scalars.checked(NOTHING, shape, "a key")
        extras = []
        for keys, matched in kinds:
            places: list[Place] = []
            for block in shape.blocks:
                hit = [place for pattern, place in block.patterns if pattern in matched]
                places += hit or [block.additional]
            if keys is not NOTHING and not any(place.schema is False for place in places):
                extras.append(Extra(keys, self.rule(places)))
        return extras

    def _array(self, shape: Shape) -> ArrayShape:
        prefix = shape.longest_prefix
        if prefix > _MAX_PREFIX:
            raise GrammarError(f"{shape.path} describes more than {_MAX_PREFIX} items one by one; simplify it.")
        limit = max(shape.min_items, shape.max_items or 0, prefix)
        for contained in shape.contains:
            limit *= 1 + max(contained.low, contained.high or 0)
        if shape.contains and limit > _MAX_CONTAINED:
            raise GrammarError(f"{shape.path}/contains counts too far together with minItems or maxItems.")
        items = [self._items(shape, index) for index in range(prefix + 1)]
        wanted = [Wanted(contained.low, contained.high) for contained in shape.contains]
        return ArrayShape(self.spelling, items, shape.min_items, shape.max_items, wanted)

    def _items(self, shape: Shape, index: int) -> list[Item]:
        """The ways to write the item at `index`: with `contains`, as one of those wanted or as another."""
        base = shape.item(index)
        if len(shape.contains) > 3:
            raise GrammarError(f"{shape.path}/contains is asked for more than three times; simplify it.")
        options = []
        for hits in product((True, False), repeat=len(shape.contains)):
            places = list(base)
            for hit, contained in zip(hits, shape.contains, strict=True):
                if hit:
                    places.append(contained.place)
                elif contained.high is not None:
                    places.append(self.reader.negation(contained.place))
            options.append(Item(self.rule(places), hits))
        return options

    # -- questions

    def fits(self, shape: Shape, value: Any, depth: int = 0) -> bool:
        """Whether a value satisfies a shape; the shape's own `enum` is not looked at."""
        if depth > _DEPTH:
            raise GrammarError(f"{shape.path}/enum has a value nested deeper than {_DEPTH} levels.")
        if isinstance(value, list):
            return self._fits_list(shape, value, depth)
        if isinstance(value, dict):
            return self._fits_object(shape, value, depth)
        return self.scalars.fits(shape, value)

    def _satisfies(self, places: Iterable[Place], value: Any, depth: int) -> bool:
        return any(
            self.fits(shape, value, depth) and (shape.enum is None or _listed(value, shape.enum))
            for shape in self.reader.shapes(_unique(places))
        )

    def _fits_list(self, shape: Shape, value: list[Any], depth: int) -> bool:
        if "array" not in shape.types or len(value) < shape.min_items or _listed(value, shape.excluded):
            return False
        if shape.max_items is not None and len(value) > shape.max_items:
            return False
        for wanted in shape.contains:
            hits = sum(self._satisfies([wanted.place], item, depth + 1) for item in value)
            if hits < wanted.low or (wanted.high is not None and hits > wanted.high):
                return False
        return all(self._satisfies(shape.item(i), item, depth + 1) for i, item in enumerate(value))

    def _fits_object(self, shape: Shape, value: dict[str, Any], depth: int) -> bool:
        if "object" not in shape.types or not shape.required.keys() <= value.keys() or _listed(value, shape.excluded):
            return False
        if len(value) < shape.min_members or (shape.max_members is not None and len(value) > shape.max_members):
            return False
        names = self._names(shape)
        for name, inner in value.items():
            places = self.member(shape, name, names)
            if places is None or not self._satisfies(places, inner, depth + 1):
                return False
        return True

    def _satisfiable(self, shape: Shape, depth: int) -> bool:
        """Whether some value fits, looked at to a depth: beyond it, the answer is yes."""
        if shape.enum is not None:
            return any(self.fits(shape, value) for value in shape.enum)
        return any(self._has(shape, atom, depth) for atom in shape.types)

    def _types_of(self, shape: Shape) -> frozenset[str]:
        """The types of which some value fits."""
        if shape.enum is not None:
            return shape.types if self._satisfiable(shape, 0) else frozenset()
        return frozenset(atom for atom in shape.types if self._has(shape, atom, 0))

    def _has(self, shape: Shape, atom: str, depth: int) -> bool:
        """Whether some value of one type fits."""
        if atom == "array":
            return all(self._can_be(shape.item(i), depth) for i in range(min(shape.min_items, _LOOK)))
        if atom == "object":
            names = self._names(shape)
            needed = (self.member(shape, name, names) for name in shape.required)
            return all(places is not None and self._can_be(places, depth) for places in needed)
        return self.scalars.node(replace(shape, types=frozenset((atom,)))) is not NOTHING

    def _can_be(self, places: tuple[Place, ...], depth: int) -> bool:
        if depth >= _LOOK:
            return True
        key = tuple(map(id, _unique(places)))
        if key not in self._judged:
            self._judged[key] = True  # for what refers to itself
            shapes = self.reader.shapes(_unique(places))
            self._judged[key] = any(self._satisfiable(shape, depth + 1) for shape in shapes)
        return self._judged[key]


_FALSE = Place(False, "#", "")


def _unique(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(place for place in places if not says_nothing(place)))


def _listed(value: Any, values: list[Any]) -> bool:
    return identity(value) in map(identity, values)
