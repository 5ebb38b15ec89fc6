"""Annotations become schemas, and JSON becomes what they describe."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Required, TypedDict, TypeVar
from uuid import UUID

import pytest

import wgemma
from grammar_texts import walk
from wgemma.annotations import build, schema_of
from wgemma.text.grammar import compile_schema


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


@dataclass
class Node:
    """A place in a tree.

    More about it.
    """

    name: Annotated[str, "what it is called"]
    children: "list[Node]" = field(default_factory=list, metadata={"description": "what is below it"})


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Trip(TypedDict, total=False):
    to: Required[str]
    days: int


class Stay(Trip):
    nights: int
    late: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Everything:
    tree: Node
    point: Point
    stay: Stay
    colors: set[Color]
    pair: tuple[int, str]
    when: datetime | None = None
    more: dict[str, list[float]] = field(default_factory=dict)


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (UserId, {"type": "integer"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", None], {"enum": ["a", None]}),
        (Literal[1, None, True], {"enum": [1, None, True]}),
        (Color, {"type": "string", "enum": ["red", "blue"]}),
        (Size, {"type": "integer", "enum": [1, 2]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (frozenset[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (dict, {"type": "object"}),
        (Mapping[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Annotated[str, 5, "a town"], {"type": "string", "description": "a town"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        (
            Stay,
            {
                "type": "object",
                "properties": {
                    "to": {"type": "string"},
                    "days": {"type": "integer"},
                    "nights": {"type": "integer"},
                    "late": {"type": "boolean"},
                },
                "required": ["to", "nights"],
                "additionalProperties": False,
            },
        ),
    ],
    ids=str,
)
def test_an_annotation_has_a_schema(annotation: Any, schema: dict[str, Any]) -> None:
    found = schema_of(annotation)
    assert json.dumps(found) == json.dumps(schema)  # in this order
    compile_schema(found)


def test_a_class_that_contains_itself_is_a_definition() -> None:
    schema = schema_of(Node)
    assert schema["$ref"] == "#/$defs/Node" and [*schema["$defs"]] == ["Node"]
    node = schema["$defs"]["Node"]
    assert node["description"] == "A place in a tree." and node["required"] == ["name"]
    assert node["properties"]["name"]["description"] == "what it is called"
    assert node["properties"]["children"]["description"] == "what is below it"
    assert node["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert "description" not in schema_of(Everything)  # a dataclass without a docstring makes one up


def test_two_classes_of_one_name_have_two_definitions() -> None:
    def made(kind: type) -> type:
        @dataclass
        class Item:
            value: kind  # type: ignore[valid-type]

        return Item

    schema = schema_of(tuple[made(int), made(str)])  # type: ignore[misc]
    assert [*schema["$defs"]] == ["Item", "Item_2"]
    assert schema["$defs"]["Item_2"]["properties"] == {"value": {"type": "string"}}


EVERYTHING = {
    "tree": {"name": "root", "children": [{"name": "leaf"}]},
    "point": {"x": 1},
    "stay": {"to": "Rome", "nights": 2.0},
    "colors": ["red", "red", "blue"],
    "pair": [1, "a"],
    "when": "2024-02-29t12:30:00.5z",
    "more": {"a": [1, 2.5]},
}


def test_json_becomes_what_is_described() -> None:
    grammar = compile_schema(schema_of(Everything))
    state = grammar.advance_all(grammar.start, json.dumps({**EVERYTHING, "stay": {"to": "Rome", "nights": 2}}).encode())
    assert state is not None and state.accepts
    assert build(Everything, EVERYTHING) == Everything(
        tree=Node("root", [Node("leaf")]),
        point=Point(1.0),
        stay={"to": "Rome", "nights": 2},
        colors={Color.RED, Color.BLUE},
        pair=(1, "a"),
        when=datetime(2024, 2, 29, 12, 30, 0, 500_000, UTC),
        more={"a": [1.0, 2.5]},
    )


@pytest.mark.parametrize(
    ("annotation", "value", "built"),
    [
        (float, 3, 3.0),
        (int, 3.0, 3),
        (float | int, 3, 3),
        (int | float, 3.5, 3.5),
        (date | str, "2024-01-31", date(2024, 1, 31)),
        (date | str, "soon", "soon"),
        (Literal[True, 1], 1, 1),
        (Size, 2, Size.LARGE),
        (Literal[Color.RED], "red", Color.RED),
        (time, "12:00:00+01:00", time.fromisoformat("12:00:00+01:00")),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
        (frozenset[int], [1, 1], frozenset({1})),
        (Node | Point, {"x": 2}, Point(2.0)),
        (Any, {"a": [None]}, {"a": [None]}),
    ],
    ids=str,
)
def test_values_get_the_type_that_fits(annotation: Any, value: Any, built: Any) -> None:
    found = build(annotation, value)
    assert found == built and type(found) is type(built)


@pytest.mark.parametrize(
    ("annotation", "value", "sentence"),
    [
        (int, True, "x is True; it must be a whole number."),
        (int, "3", "x is '3'; it must be a whole number."),
        (bool, 1, "x is 1; it must be true or false."),
        (Literal[1], True, "x is True; it must be 1."),
        (list[int], [1, "b"], "x[1] is 'b'; it must be a whole number."),
        (Point, {"x": 1, "z": 1}, "x has the key 'z', which Point does not have."),
        (Point, {"y": 1}, "x has no x."),
        (Node, {"name": "a", "children": [{"name": 5}]}, "x.children[0].name is 5; it must be a string."),
        (int | None, "a", "x is 'a'; it must be a whole number or null."),
        (date, "2024-02-30", "x is '2024-02-30'; it must be a date."),
        (date, 5, "x is 5; it must be a date."),
        (tuple[int, int], [1], "x is [1]; it must be a list of 2."),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_refused(annotation: Any, value: Any, sentence: str) -> None:
    with pytest.raises(wgemma.SettingsError) as refused:
        build(annotation, value, "x")
    assert str(refused.value) == sentence


def test_every_date_that_a_schema_allows_can_be_built() -> None:
    for annotation in (date, datetime):
        grammar = compile_schema(schema_of(annotation))
        state = grammar.advance_all(grammar.start, b'"000')
        assert state is not None and not grammar.allowed(state) & 1 << ord("0")
        assert grammar.allowed(state) & 1 << ord("1")


@pytest.mark.parametrize(
    "annotation",
    [Everything, Node, list[Stay], date | Point | None, dict[str, UUID], set[time], tuple[datetime, Size, float]],
    ids=str,
)
def test_whatever_a_schema_allows_can_be_built(annotation: Any) -> None:
    grammar, built = compile_schema(schema_of(annotation)), 0
    for seed in range(40):
        text = walk(grammar, seed)
        if text is not None:
            build(annotation, json.loads(text))
            built += 1
    assert built > 10


@dataclass
class Wrong:
    data: bytes


@dataclass
class Hidden:
    data: "list[Unknown]"  # type: ignore[name-defined]  # noqa: F821


class Odd(Enum):
    A = (1, 2)


T = TypeVar("T")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Wrong, "Wrong.data: bytes has no JSON schema; use str, int"),
        (list[Wrong], "Wrong.data: bytes"),
        (Hidden, "Hidden: an annotation has the name Unknown, which its module does not know"),
        (Odd, r"\(1, 2\) is no JSON value"),
        (dict[int, str], "the keys of a dict are <class 'int'>"),
        (set[list[int]], r"a set cannot hold list\[int\]; use a list"),
        (list["Node"], "'Node'.* is a name in quotes; write the class itself"),
        (list[T], "~T is a type variable"),
        (Literal[b"a"], "b'a' is no JSON value"),
        (5, "an int is no annotation"),
    ],
    ids=str,
)
def test_an_annotation_without_a_schema_is_refused_by_name(annotation: Any, words: str) -> None:
    with pytest.raises(wgemma.GrammarError, match=words):
        schema_of(annotation)


def test_a_dataclass_takes_what_its_constructor_takes() -> None:
    @dataclass
    class Price:
        amount: int
        factor: InitVar[int] = 1
        double: int = field(init=False, default=0)

        def __post_init__(self, factor: int) -> None:
            self.double = 2 * self.amount * factor

    assert [*schema_of(Price)["properties"]] == ["amount", "factor"]
    assert build(Price, {"amount": 2, "factor": 3}).double == 12


class Duck:
    """What is asked of a Pydantic model."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        inner = {"type": "object", "properties": {"a": {"type": "integer"}}}
        return {"type": "object", "properties": {"node": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": inner}}

    @classmethod
    def model_validate(cls, value: Any) -> "Duck":
        return cls(value)


def test_a_models_definitions_move_to_the_top_and_clash_with_no_others() -> None:
    schema = schema_of(tuple[Node, Duck])
    assert [*schema["$defs"]] == ["Node", "Duck", "Node_2"]
    assert schema["$defs"]["Duck"]["properties"] == {"node": {"$ref": "#/$defs/Node_2"}}
    assert schema["$defs"]["Duck"]["additionalProperties"] is schema["$defs"]["Node_2"]["additionalProperties"] is False
    compile_schema(schema)
    assert build(list[Duck], [{"node": {"a": 1}}])[0].value == {"node": {"a": 1}}


def test_a_model_without_a_schema_is_refused() -> None:
    class Broken(Duck):
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            raise ValueError("it has a callable")

    with pytest.raises(wgemma.GrammarError, match="Broken has no JSON schema: it has a callable"):
        schema_of(list[Broken])


def test_pydantic_models_nest_anywhere() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", when=(date, ...), __config__={"strict": True})
    model = pydantic.create_model(
        "Outer", count=(int, pydantic.Field(ge=0)), items=(list[inner], ...), note=(str | None, None)
    )
    schema = schema_of(dict[str, model])
    grammar = compile_schema(schema)
    text = {"a": {"count": 1, "items": [{"when": "2024-01-31"}]}}
    state = grammar.advance_all(grammar.start, json.dumps(text).encode())
    assert state is not None and state.accepts
    assert grammar.advance_all(grammar.start, b'{"a": {"count": -') is None
    assert build(dict[str, model], text) == {"a": model(count=1, items=[inner(when=date(2024, 1, 31))])}
