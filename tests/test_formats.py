"""Everything that `format` may be becomes a grammar and a way to read the answer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Thread
from types import MappingProxyType
from typing import Any, Literal, TypedDict

import pytest

import wgemma
from wgemma import formats
from wgemma.formats import Format, resolve


@dataclass
class Item:
    name: str
    price: float = 0.0


class Trip(TypedDict):
    days: int


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}, "required": ["b", "a"]}


def accepts(format: Any, text: str) -> bool:
    found = resolve(format)
    assert isinstance(found, Format)
    state = found.grammar.advance_all(found.grammar.start, text.encode())
    return state is not None and state.accepts


@pytest.mark.parametrize(
    ("format", "text", "parsed", "wrong"),
    [
        (SCHEMA, '{"b": 1, "a": null}', {"b": 1, "a": None}, '{"a": null, "b": 1}'),
        (MappingProxyType({"type": "integer"}), "5", 5, "a"),
        (True, "[1]", [1], "[1"),
        ("json", '{"a": [1.5]}', {"a": [1.5]}, "[1]"),
        (Item, '{"name": "tea"}', Item("tea"), '{"price": 1}'),
        (list[Item], '[{"name": "tea", "price": 2}]', [Item("tea", 2.0)], "{}"),
        (Trip, '{"days": 3}', {"days": 3}, '{"days": "3"}'),
        (int, "12", 12, "1.5"),
        (int | None, "null", None, '"a"'),
        (Literal["a", "b"], '"a"', "a", "a"),
        (wgemma.Regex(r"\d{2}"), "42", "42", "4"),
        (wgemma.Choice(["yes", "no"]), "yes", "yes", "maybe"),
        (wgemma.Grammar('root ::= "a" | "b" root'), "bba", "bba", "ab"),
    ],
    ids=str,
)
def test_a_format_has_a_grammar_and_reads_what_follows_it(format: Any, text: str, parsed: Any, wrong: str) -> None:
    assert accepts(format, text) and not accepts(format, wrong)
    found = resolve(format)
    assert found is not None
    assert found.parse(text) == parsed and type(found.parse(text)) is type(parsed)


def test_no_format_is_none() -> None:
    assert resolve(None) is None


def test_a_format_is_compiled_once() -> None:
    assert resolve(SCHEMA) is resolve({**SCHEMA}) is resolve(MappingProxyType(SCHEMA))
    assert resolve(list[Item]) is resolve(list[Item])
    assert resolve(wgemma.Choice(["a"])) is resolve(wgemma.Choice(("a",)))
    assert resolve(wgemma.Regex("a")) is not resolve(wgemma.Grammar('root ::= "a"'))
    assert resolve(int | str) is not resolve(str | int)


def test_the_order_of_keys_is_part_of_a_schema() -> None:
    turned = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
    assert resolve(turned) is not resolve(SCHEMA)
    assert accepts(turned, '{"a": null, "b": 1}')


def test_a_schema_that_is_changed_afterwards_is_another_one() -> None:
    schema: dict[str, Any] = {"type": "string"}
    assert accepts(schema, '"a"')
    schema["type"] = "integer"
    assert accepts(schema, "1") and not accepts(schema, '"a"')


def test_only_the_last_formats_are_kept() -> None:
    first = resolve(wgemma.Choice(["first"]))
    for i in range(formats._MOST):
        resolve(wgemma.Choice([str(i)]))
    assert len(formats._formats) == formats._MOST
    assert resolve(wgemma.Choice(["first"])) is not first


def test_threads_may_resolve_at_the_same_time() -> None:
    found: list[Any] = []
    threads = [
        Thread(target=lambda: found.extend(resolve(wgemma.Choice([str(i)])) for i in range(100))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400 and all(found)


def test_what_is_not_enforced_is_listed() -> None:
    found = resolve(set[int])
    assert found is not None and found.unchecked == ["#/uniqueItems"]


@pytest.mark.parametrize(
    ("format", "error", "words"),
    [
        ({"type": "json_object"}, wgemma.SettingsError, 'any JSON object is format="json" here'),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            wgemma.SettingsError,
            "write format=…['json_schema']['schema']",
        ),
        ({"type": "text"}, wgemma.SettingsError, "leave out"),
        ("yaml", wgemma.SettingsError, "format is 'yaml'; it must be \"json\", a schema, a class"),
        ('{"type": "object"}', wgemma.SettingsError, "json.loads"),
        (re.compile("a"), wgemma.SettingsError, "wgemma.Regex(pattern)"),
        (["yes", "no"], wgemma.SettingsError, 'wgemma.Choice(["yes", "no"])'),
        (Item("tea"), wgemma.SettingsError, "write the class, format=Item."),
        (5, wgemma.SettingsError, "format is 5"),
        (bytes, wgemma.GrammarError, "format: bytes has no JSON schema"),
        (False, wgemma.GrammarError, "nothing satisfies the schema"),
        ({"type": "strong"}, wgemma.GrammarError, "#/type is 'strong'"),
        ({"enum": [{1}]}, wgemma.GrammarError, "format is no JSON schema: a set is not JSON."),
        ({"description": "a" * 5_000_000}, wgemma.GrammarError, "too large"),
        (wgemma.Regex("("), wgemma.GrammarError, "pattern"),
        (wgemma.Regex(5), wgemma.GrammarError, "must be a string"),  # type: ignore[arg-type]
        (wgemma.Choice([]), wgemma.GrammarError, "at least one string"),
        (wgemma.Choice("yes"), wgemma.GrammarError, "must be a list of strings"),
        (wgemma.Choice([[]]), wgemma.GrammarError, "must be a list of strings"),  # type: ignore[list-item]
        (wgemma.Grammar("nothing"), wgemma.GrammarError, "no rule"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_format_is_refused_with_a_sentence(format: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)) as refused:
        resolve(format)
    assert str(refused.value).endswith(".")


def test_an_answer_that_is_not_json_cannot_be_read() -> None:
    found = resolve(SCHEMA)
    assert found is not None and isinstance(SCHEMA, Mapping)
    for text in ('{"b": 1', "[" * 100_000):
        with pytest.raises(wgemma.GrammarError, match="cannot be read as JSON"):
            found.parse(text)
