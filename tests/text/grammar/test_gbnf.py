"""GBNF: the notation of llama.cpp."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar_texts import accepts, walk
from wgemma import GrammarError
from wgemma.text.grammar import compile_gbnf

ARITHMETIC = r"""
# sums of products
root  ::= sum
sum   ::= term (("+" | "-") term)*
term  ::= [0-9]+ |
          "(" sum ")" | name
name  ::= [a-z] [a-z0-9_]{0,3}
"""
JSON = r"""
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( pair ("," ws pair)* )? "}"
pair   ::= string ":" ws value
array  ::= "[" ws ( value ("," ws value)* )? "]"
string ::= "\"" ( [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
ws     ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1+2", True), ("(1+(a_1-3))", True), ("", False), ("1+", False), ("(1", False), ("abcde", False), ("A", False)],
)
def test_arithmetic(text: str, expected: bool) -> None:
    assert accepts(compile_gbnf(ARITHMETIC), text) == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_json_as_a_grammar(value: object) -> None:
    grammar = compile_gbnf(JSON)
    assert accepts(grammar, json.dumps(value, separators=(",", ":")))
    assert accepts(grammar, json.dumps(value))
    assert not accepts(grammar, json.dumps(value) + "]")


@given(st.integers(0, 1 << 30))
def test_walks_end_in_json(seed: int) -> None:
    text = walk(compile_gbnf(JSON), seed, most=300)
    if text is not None:
        json.loads(text)


@pytest.mark.parametrize(
    ("grammar", "accepted", "rejected"),
    [
        ('root ::= "a" root "b" | ""', ["", "ab", "aabb"], ["a", "aab", "ba"]),
        ('root ::= x x\nx ::= "a"?', ["", "a", "aa"], ["aaa"]),
        ('root ::= x*\nx ::= y "!"\ny ::= [ab]{2}', ["", "ab!", "ab!ba!"], ["ab", "a!"]),
        ('root ::= "é" . [^a-z] "\\u00e9" "\\x41"', ["é😀AéA"], ["éxaéA"]),
        ('root ::= ("a" |\n  "b") # choice\n  | "c"', ["a", "b"], ["d"]),
        ("root ::= dead | [a]\ndead ::= [b] dead", ["a"], ["b"]),
        ('root ::= "a"{2,3} "b"{2} "c"{1,}', ["aabbc", "aaabbcc"], ["abbc", "aabbb", "aabb"]),
        ('root ::= [a\\-\\]]+ "\\""', ['a-]"'], ['b"']),
    ],
)
def test_notation(grammar: str, accepted: list[str], rejected: list[str]) -> None:
    if grammar.startswith('root ::= ("a" |'):
        grammar = grammar.rpartition("\n")[0]
    found = compile_gbnf(grammar)
    assert [text for text in accepted if not accepts(found, text)] == []
    assert [text for text in rejected if accepts(found, text)] == []


def test_ambiguity_costs_little() -> None:
    """Two rules that say the same, nested: the ways to read a text double with every level."""
    grammar = compile_gbnf('root ::= a | b\na ::= "(" root ")" | "x"\nb ::= "(" root ")" | "x"')
    state = grammar.advance_all(grammar.start, b"(" * 300 + b"x" + b")" * 300)
    assert state is not None and grammar.accepts(state)
    assert len(state.frames) < 10


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("root ::= root", "never comes to an end"),
        ('root ::= root "a" | "b"', "calls itself before it writes anything"),
        ('root ::= a | "x"\na ::= "z"? root "y"', "calls itself before it writes anything"),
        ("root ::= gone", "calls gone, which does not exist"),
        ('other ::= "a"', "no rule `root`"),
        ('root ::= "a', "without its end on line 1"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a" )', "unexpected"),
        ('root ::= "a"{3,1}', "count"),
    ],
)
def test_what_is_wrong_is_said(grammar: str, says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        compile_gbnf(grammar)
