"""Whatever a schema, a pattern or a grammar is: it compiles, or it is refused with a sentence, and soon."""

import json
import random
from time import process_time
from typing import Any

import pytest

from wgemma import GrammarError
from wgemma.text.grammar import Grammar, TokenIndex, compile_choice, compile_gbnf, compile_regex, compile_schema

SOON = 8.0  # seconds; most take milliseconds
INDEX = TokenIndex([bytes((byte,)) for byte in range(256)] + [b'{"', b'": ', b"aaa", "é€😀".encode()])


def nested(levels: int, word: str = "items") -> Any:
    schema: Any = {"type": "null"}
    for _ in range(levels):
        schema = {word: [schema]} if word in ("allOf", "anyOf", "oneOf") else {word: schema}
    return schema


def wide(count: int) -> Any:
    return {"properties": {f"name{i}": {"type": "string", "maxLength": i} for i in range(count)}}


def looped() -> Any:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    return schema


# Large ones are made when they are needed.
SCHEMAS: dict[str, Any] = {
    "a reference to itself": {"$ref": "#"},
    "references in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a circle through anyOf": {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#"}]}]},
    "a circle through not": {"not": {"$ref": "#"}},
    "a value that never ends": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a list that never ends": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "no type": {"type": []},
    "types that exclude each other": {"allOf": [{"type": "string"}, {"type": "null"}]},
    "a range without numbers": {"type": "integer", "minimum": 3, "exclusiveMaximum": 3},
    "no multiple in the range": {"type": "number", "minimum": 1, "maximum": 6, "multipleOf": 7},
    "patterns that exclude each other": {"type": "string", "allOf": [{"pattern": "^a+$"}, {"pattern": "b"}]},
    "a required member that is forbidden": {"type": "object", "required": ["a"], "additionalProperties": False},
    "too few members": {"type": "object", "properties": {"a": {}}, "additionalProperties": False, "minProperties": 2},
    "false": False,
    "levels of lists": lambda: nested(5000),
    "levels of members": json.loads('{"properties": {"a":' * 90 + "true" + "}}" * 90),
    "levels of allOf": lambda: nested(5000, "allOf"),
    "levels of not": lambda: nested(5000, "not"),
    "levels of anyOf within reach": nested(99, "anyOf"),
    "more members than anyone needs": lambda: wide(9_000),
    "a hundred thousand members": lambda: wide(100_000),
    "a schema of ten megabytes": lambda: {"properties": {f"{i:0100}": {"type": "string"} for i in range(80_000)}},
    "an enum of ten megabytes": lambda: {"enum": [f"{i:0100}" for i in range(100_000)]},
    "two long enums": lambda: {"allOf": [{"enum": [*range(20_000)]}, {"enum": [*range(10_000, 30_000)]}]},
    "many anyOf together": {"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}]} for i in range(40)]},
    "oneOf with many branches": {"oneOf": [{"required": [f"a{i}"], "type": "object"} for i in range(60)]},
    "oneOf with many constants": {"oneOf": [{"properties": {"a": {"const": i}}, "required": ["a"]} for i in range(60)]},
    "dependencies in all directions": {"dependentRequired": {f"a{i}": [f"a{i + 1}"] for i in range(40)}},
    "overlapping names": {"patternProperties": {f"a{i}": {"minimum": i} for i in range(30)}},
    "lookahead upon lookahead": {"type": "string", "pattern": "^" + "".join(f"(?=.*{c})" for c in "abcdefghijkl")},
    "a long way to the shortest string": {"type": "string", "minLength": 100_000, "pattern": "^(ab|cd)*$"},
    "counts beyond reason": {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 10**9}},
    "a huge number": {"minimum": 10**5000},
    "a tiny step": {"multipleOf": 1e-300, "type": "number"},
    "an odd step": {"multipleOf": 7919 * 104729, "type": "integer", "minimum": 1},
    "an enum that nests": {"enum": [json.loads("[" * 150 + "]" * 150)]},
    "what JSON does not have": {"enum": [float("nan"), float("inf")]},
    "something that is no JSON": {"enum": [{1, 2}]},
    "a loop of objects": looped(),
    "a list as a schema": [],
    "text that is no JSON": "{",
    "nested text": "[" * 100_000,
}
MALFORMED: dict[str, Any] = {
    "type": 3,
    "enum": "a",
    "properties": [],
    "required": "a",
    "items": 3,
    "prefixItems": 3,
    "allOf": {},
    "anyOf": [],
    "oneOf": 1,
    "not": 1,
    "minimum": "1",
    "multipleOf": 0,
    "minLength": -1,
    "maxItems": 1.5,
    "pattern": 3,
    "patternProperties": {"(": True},
    "$ref": 3,
    "dependentRequired": {"a": 3},
    "additionalProperties": 3,
    "contains": None,
    "if": 3,
}


def used(grammar: Grammar) -> None:
    """Takes the steps an answer would take at its start."""
    state = grammar.start
    for _ in range(40):
        INDEX.mask(grammar, state)
        if grammar.only_ends(state):
            return
        allowed = grammar.allowed(state)
        following = grammar.advance(state, (allowed & -allowed).bit_length() - 1)
        assert following is not None
        state = following


@pytest.mark.parametrize("name", SCHEMAS)
def test_any_schema_compiles_or_is_refused(name: str) -> None:
    start = process_time()
    try:
        used(compile_schema(SCHEMAS[name]() if callable(SCHEMAS[name]) else SCHEMAS[name]))
    except GrammarError as problem:
        assert str(problem).endswith((".", ".)")) and len(str(problem)) < 1000
    assert process_time() - start < SOON


CONTRADICTIONS = [name for name, schema in SCHEMAS.items() if isinstance(schema, dict)][:13]


@pytest.mark.parametrize("name", [*CONTRADICTIONS, "false"])
def test_what_nothing_satisfies_is_refused_before_anything_is_written(name: str) -> None:
    with pytest.raises(GrammarError):
        compile_schema(SCHEMAS[name])


@pytest.mark.parametrize("keyword", MALFORMED)
def test_a_malformed_keyword_is_named(keyword: str) -> None:
    schema = {"properties": {"x": {keyword: MALFORMED[keyword], **({"then": {}} if keyword == "if" else {})}}}
    with pytest.raises(GrammarError) as problem:
        compile_schema(schema)
    assert f"#/properties/x/{keyword}" in str(problem.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+c",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(.*)(.*)(.*)(.*)(.*)x",
        "((a{0,99}){0,99}){0,99}",
        "(a?){60}a{60}",
        ".*a.{3000}",
        ".*a.{60}",
        "((((((((((x*)*)*)*)*)*)*)*)*)*)*",
        "(" * 5000 + ")" * 5000,
        "a{1}" * 4000,
        "[" * 100,
        "a{99999999999}",
        "x" * 100_000,
        "(?=a)" * 40 + "a",
        "^\\p{L}+\\P{Lu}*$",
        "(?<=a)b",
        "\\bword\\b",
        "(a)\\1",
        "[z-a]",
        "*",
        "a**",
        "\\",
        "(?P<name>a",
        "^(?!.*(aa|bb|cc|dd)).*$",
    ],
)
def test_any_pattern_compiles_or_is_refused(pattern: str) -> None:
    start = process_time()
    for schema in (None, {"type": "string", "pattern": pattern, "maxLength": 50}):
        try:
            used(compile_regex(pattern) if schema is None else compile_schema(schema))
        except GrammarError as problem:
            assert str(problem).endswith((".", ".)"))
    assert process_time() - start < SOON


def test_every_byte_is_decided_soon_even_where_finding_a_word_is_hard() -> None:
    """Others wait while a byte is looked at, so the work for one has a limit."""
    grammar = compile_regex("(?=.*a.{60})(?=.*b.{50})(?=.*ab.{40})(?!.*bb.{30}a)[ab]*")
    dice, state, pool = random.Random(1), grammar.start, grammar._pool
    for _ in range(80):
        made = len(pool._nodes)
        allowed = grammar.allowed(state)
        following = grammar.advance(state, dice.choice([byte for byte in b"ab" if allowed >> byte & 1]))
        assert following is not None
        state = following
        assert len(pool._nodes) - made < 5_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "root",
        "root ::=",
        "root ::= root",
        "root ::= root | root",
        'root ::= a "x"\na ::= b?\nb ::= root',
        "root ::= a",
        'root ::= "a\n',
        "root ::= [a",
        "root ::= (" * 3000,
        'root ::= "x"{9999999}',
        'root ::= a{0,1000}\na ::= b{0,1000}\nb ::= "x"? "y"?',
        'root ::= ((("x"?){0,500}){0,500}){0,500}',
        'root ::= "a" root "b" | "c" root "d"',
        'root ::= "\\q"',
        'a ::= "x"',
        'root ::= "x"\nroot ::= "y"',
        "root ::= "
        + " ".join(f"r{i}" for i in range(3000))
        + "\n"
        + "\n".join(f"r{i} ::= [a-z]?" for i in range(3000)),
        'root ::= "x"' + "*" * 1000,
    ],
)
def test_any_gbnf_compiles_or_is_refused(text: str) -> None:
    start = process_time()
    try:
        used(compile_gbnf(text))
    except GrammarError as problem:
        assert str(problem).endswith(".")
    assert process_time() - start < SOON


def test_a_choice_needs_strings() -> None:
    bad: list[Any] = [[], "yes", [1], ["\ud800"], 5, None]
    for strings in bad:
        with pytest.raises(GrammarError):
            compile_choice(strings)
