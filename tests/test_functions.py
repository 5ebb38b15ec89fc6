"""Python functions become tools, and calls of tools become calls of functions."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import wgemma
from wgemma.functions import declaration_of, declarations, function_of, functions_of, told
from wgemma.text.grammar import compile_tools


@dataclass
class Place:
    city: Annotated[str, "the town"]
    zip: str | None = None


@dataclass
class Tree:
    """A tree."""

    name: str
    below: "list[Tree]" = field(default_factory=list)


def google(city: str, days: int = 3, *, unit: Annotated[Literal["C", "F"], "the scale"] = "C") -> str:
    """Tells the
    weather.

    It looks out of the window.

    Args:
        city (str): Where to
            look.
        days: How far: in days.
        unit: Not used.
        other: Not an argument.

    Returns:
        city: Not an argument.
    """
    return f"{city} {days} {unit}"


def numpy_style(city: str, days: int = 3, unit: str = "C") -> None:
    """Tells the
    weather.

    Parameters
    ----------
    city : str
        Where to
        look.
    days : int, optional
        How far: in days.
    unit
        the scale

    Returns
    -------
    city : str
        Not an argument.
    """


def rest(city: str, days: int = 3, unit: str = "C") -> None:
    """Tells the
    weather.

    :param str city: Where to
        look.
    :param days: How far: in days.
    :param unit: the scale
    :returns: nothing
    """


@pytest.mark.parametrize("function", [google, numpy_style, rest])
def test_signature_annotations_and_docstring_declare_a_function(function: Callable[..., Any]) -> None:
    found = declaration_of(function)
    about = found["function"]
    assert found["type"] == "function" and about["name"] == function.__name__
    assert about["description"] == "Tells the weather."
    assert about["parameters"]["required"] == ["city"]
    properties = about["parameters"]["properties"]
    assert properties["city"] == {"type": "string", "description": "Where to look."}
    assert properties["days"] == {"type": "integer", "description": "How far: in days."}
    assert properties["unit"]["description"] == "the scale"
    assert function is not google or properties["unit"]["enum"] == ["C", "F"]
    compile_tools([found])


def nested(place: Place, other: Place | None = None, mixed: int | str = 0, anything=None) -> None:  # type: ignore[no-untyped-def]
    pass


def test_what_is_nested_is_written_in_place() -> None:
    found = declaration_of(nested)
    parameters = found["function"]["parameters"]
    inner = {"city": {"type": "string", "description": "the town"}, "zip": {"type": "string", "nullable": True}}
    place = {"type": "object", "properties": inner, "required": ["city"], "additionalProperties": False}
    assert parameters["properties"] == {
        "place": place,
        "other": {**place, "nullable": True},
        "mixed": {"type": ["integer", "string"]},
        "anything": {},
    }
    assert parameters.keys() == {"type", "properties", "required"} and parameters["required"] == ["place"]
    assert "nullable:true,type:" in wgemma.render([{"role": "user", "content": "Hi"}], tools=[found])
    grammar = compile_tools([found])
    call = b"call:nested{anything:[1],other:null,place:{city:"
    assert grammar.advance_all(grammar.start, call) is not None


def test_what_contains_itself_keeps_its_definition() -> None:
    def plant(tree: Tree) -> None:
        """Plants.

        Args:
            tree: what to plant
        """

    found = declaration_of(plant)
    parameters = found["function"]["parameters"]
    assert parameters["properties"]["tree"]["description"] == "what to plant"
    assert parameters["properties"]["tree"]["properties"]["below"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Tree"},
    }
    assert [*parameters["$defs"]] == ["Tree"]
    compile_tools([found])


class Weather:
    """The weather of a place."""

    def __init__(self, place: str) -> None:
        self.place = place

    def tell(self, days: int) -> str:
        """Tells it."""
        return f"{self.place} {days}"

    @classmethod
    def made(cls, place: str) -> str:
        return place

    @staticmethod
    def of(place: str) -> str:
        return place

    async def __call__(self, days: int) -> str:
        return f"{self.place} {days}"


async def later(days: int) -> int:
    return days


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("function", "name", "description", "parameters", "is_async"),
    [
        (Weather("Rome").tell, "tell", "Tells it.", ["days"], False),
        (Weather.made, "made", "", ["place"], False),
        (Weather.of, "of", "", ["place"], False),
        (Weather("Rome"), "Weather", "The weather of a place.", ["days"], True),
        (functools.partial(google, "Rome"), "google", "Tells the weather.", ["days", "unit"], False),
        (functools.partial(google, unit="F"), "google", "Tells the weather.", ["city", "days"], False),
        (functools.partial(later), "later", "", ["days"], True),
        (logged(google), "google", "Tells the weather.", ["city", "days", "unit"], False),
        (later, "later", "", ["days"], True),
    ],
)
def test_everything_that_is_called_by_names_is_a_tool(
    function: Any, name: str, description: str, parameters: list[str], is_async: bool
) -> None:
    found = function_of(function)
    assert (found.name, found.description, [*found.parameters]) == (name, description, parameters)
    assert found.is_async is is_async


def positional(a: int, /) -> None: ...
def starred(*numbers: int) -> None: ...
def keyed(a: int, **more: int) -> None: ...
def wrong(data: bytes) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (positional, "positional cannot be a tool: its argument a has no name for callers (/)."),
        (starred, "starred cannot be a tool: it takes *numbers."),
        (lambda a: a, "must be a function with a name, made by def"),
        (Weather, "the class Weather cannot be a tool"),
        (Weather.tell, "tell cannot be a tool: it is a method without its object. Pass object.tell."),
        (min, "min cannot be a tool"),
        (wrong, "the argument data of wrong: bytes has no JSON schema"),
    ],
)
def test_what_cannot_be_called_by_names_is_refused(function: Any, words: str) -> None:
    with pytest.raises(wgemma.Error, match=re.escape(words)):
        declaration_of(function)
    assert [*function_of(keyed).parameters] == ["a"]


DECLARED = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}


def test_functions_and_declarations_mix() -> None:
    assert declarations([google, DECLARED]) == [declaration_of(google), DECLARED]
    assert declarations(None) is None
    with pytest.raises(wgemma.SettingsError, match="must be a list"):
        declarations("wrong")
    with pytest.raises(wgemma.SettingsError, match=r"tools is a function; write a list, as in tools=\[google\]"):
        declarations(google)


def test_functions_to_run_are_functions_of_different_names() -> None:
    assert [*functions_of([google, later])] == ["google", "later"]
    for tools, words in (
        ([DECLARED], "cannot be called: run_tools() takes functions"),
        ([google, functools.partial(google)], "two tools named google"),
        (google, "must be a list of functions"),
    ):
        with pytest.raises(wgemma.SettingsError, match=re.escape(words)):
            functions_of(tools)


def test_arguments_become_what_the_annotations_say() -> None:
    def visit(place: Place, when: date, times: int = 1) -> None: ...

    function = function_of(visit)
    found = function.arguments({"place": {"city": "Rome"}, "when": "2024-01-31"})
    assert found == {"place": Place("Rome"), "when": date(2024, 1, 31)}
    for values, sentence in (
        ({"place": {"city": "Rome"}}, "visit needs the argument when."),
        ({"where": 1}, "visit has no argument 'where'; it has place, when, times."),
        ({"place": {}, "when": "2024-01-31"}, "place has no city."),
        ({"place": {"city": "Rome"}, "when": "soon"}, "when is 'soon'; it must be a date."),
    ):
        with pytest.raises(wgemma.SettingsError) as refused:
            function.arguments(values)
        assert str(refused.value) == sentence


class Unit(Enum):
    C = "celsius"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("sun", "sun"),
        (None, "null"),
        (3, "3"),
        ({"a": [1, "ä"]}, '{"a": [1, "ä"]}'),
        ((1, 2), "[1, 2]"),
        (
            {"set": {1}, "unit": Unit.C, "day": date(2024, 1, 31)},
            '{"set": [1], "unit": "celsius", "day": "2024-01-31"}',
        ),
        ([Place("Rome")], '[{"city": "Rome", "zip": null}]'),
        (np.arange(3), "[0, 1, 2]"),
        (1 + 2j, '"(1+2j)"'),
        ("half \ud83d", "half ?"),
    ],
    ids=str,
)
def test_results_are_text_or_json(result: Any, text: str) -> None:
    assert told(result) == text
