"""Random schemas against a plain checker: what is valid is accepted, what is written is valid, nothing gets stuck."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_texts import Speller, walk
from json_checker import valid
from random_schemas import Maker
from wgemma import GrammarError
from wgemma.text.grammar import Grammar, compile_schema

SEEDS = st.integers(0, 1 << 40)


def compiled(schema: Any) -> Grammar | None:
    """The grammar; None where the schema is refused with a sentence."""
    try:
        return compile_schema(schema)
    except GrammarError as problem:
        assert str(problem).endswith((".", ".)"))
        return None


@settings(max_examples=250)
@given(SEEDS)
def test_a_value_is_accepted_if_and_only_if_it_is_valid(seed: int) -> None:
    make = Maker(seed)
    schema = make.schema()
    grammar = compiled(schema)
    for value in [make.value() for _ in range(12)]:
        if grammar is not None:
            accepted = Speller(grammar, schema, ensure_ascii=bool(seed % 2)).accepts(value)
            assert accepted == valid(schema, value), (schema, value)


@settings(max_examples=250)
@given(SEEDS)
def test_whatever_is_written_is_valid(seed: int) -> None:
    schema = Maker(seed).schema()
    grammar = compiled(schema)
    text = walk(grammar, seed) if grammar is not None else None
    if text is not None:
        value = json.loads(text, object_pairs_hook=_unless_repeated, parse_float=Fraction)
        assert _has_repeated(value) or valid(schema, value), (schema, text)


def test_enough_of_them_compile_and_enough_values_are_valid() -> None:
    compiles = fits = 0
    for seed in range(200):
        make = Maker(seed)
        schema = make.schema()
        grammar = compiled(schema)
        compiles += grammar is not None
        fits += grammar is not None and any(valid(schema, make.value()) for _ in range(12))
    assert compiles > 100
    assert fits > 60


_REPEATED = "\0repeated"


def _unless_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Marks an object with a key twice: nobody counts keys that no schema names."""
    return dict(pairs) if len(dict(pairs)) == len(pairs) else {_REPEATED: True}


def _has_repeated(value: Any) -> bool:
    if isinstance(value, dict):
        return _REPEATED in value or any(map(_has_repeated, value.values()))
    return isinstance(value, list) and any(map(_has_repeated, value))


@pytest.mark.parametrize("keyword", ["minProperties", "maxProperties"])
def test_named_members_are_never_repeated(keyword: str) -> None:
    grammar = compile_schema({"properties": {"a": {"type": "null"}}, "required": ["a"], keyword: 1})
    assert grammar.advance_all(grammar.start, b'{"a": null, "a') is None or keyword == "minProperties"
    after = grammar.advance_all(grammar.start, b'{"a": null, "a"')
    assert after is None
