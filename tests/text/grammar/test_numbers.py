"""Bounds and steps, compared with exact arithmetic."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_texts import accepts
from json_checker import valid
from wgemma import GrammarError
from wgemma.text.grammar import compile_schema

LIMITS = st.one_of(st.integers(-300, 300), st.sampled_from([-12.5, -0.01, 0.1, 0.25, 1.75, 99.99, 1e-5, 1e17, -1e17]))
SCHEMAS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": LIMITS,
        "maximum": LIMITS,
        "exclusiveMinimum": LIMITS,
        "exclusiveMaximum": LIMITS,
        "multipleOf": st.sampled_from([1, 3, 7, 10, 0.1, 0.25, 1.5, 250]),
        "not": st.sampled_from([{"multipleOf": 2}, {"const": 7}, {"enum": [0, 0.5, 12]}, {"type": "integer"}]),
    },
)
NUMBERS = st.one_of(
    st.integers(-400, 400),
    st.decimals(-400, 400, places=2, allow_nan=False).map(float),
    st.sampled_from([0, 1e-7, -1e-5, 123456789012345678, 5e300, 0.1, 7.25, 1e16]),
)


@settings(max_examples=150)
@given(SCHEMAS, st.lists(NUMBERS, min_size=1, max_size=20))
def test_a_number_is_accepted_if_it_is_valid(schema: dict[str, Any], numbers: list[float]) -> None:
    try:
        grammar = compile_schema(schema)
    except GrammarError:
        assert not any(valid(schema, number) for number in numbers)
        return
    for number in numbers:
        if isinstance(number, float) and (number.is_integer() or "e" in repr(number)):
            continue  # integers are written without a point; exponents have a test of their own
        assert accepts(grammar, json.dumps(number)) == valid(schema, number), (schema, number)


def test_exponents_are_written_where_they_cannot_be_wrong() -> None:
    free = compile_schema({"type": "number"})
    assert all(accepts(free, text) for text in ("1e-07", "1.5e+300", "2E5", "-1e16", "0e0"))
    assert not any(accepts(free, text) for text in ("1e400", "12e3", "1e", "1e+"))
    bounded = compile_schema({"type": "number", "minimum": 0, "maximum": 1})
    assert accepts(bounded, "1e-07") and not accepts(bounded, "1e+17") and not accepts(bounded, "-1e-07")
    large = compile_schema({"type": "number", "minimum": 5})
    assert accepts(large, "1e+17") and not accepts(large, "1e-07")


@settings(max_examples=40)
@given(st.integers(1, 10**40), st.integers(0, 10**40))
def test_integers_of_any_size_have_exact_bounds(low: int, more: int) -> None:
    grammar = compile_schema({"type": "integer", "minimum": -more, "maximum": low})
    assert accepts(grammar, str(low)) and not accepts(grammar, str(low + 1))
    assert accepts(grammar, str(-more)) and not accepts(grammar, str(-more - 1))
