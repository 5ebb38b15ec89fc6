"""Regular expressions mean what `re` says they mean."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_texts import accepts, walk
from wgemma import GrammarError
from wgemma.text.grammar import Grammar, compile_choice, compile_regex, compile_schema

LETTERS = 'ab1 é😀"\\\n-'
ATOMS = st.sampled_from(
    ["a", "b", "1", "é", "😀", '"', r"\\", ".", r"\d", r"\w", r"\S", r"\s", "[ab]", "[^a]", "[a-z1]", r"[^\s\"]", "\\-"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)
TEXTS = st.text(LETTERS, max_size=6)
SPACES = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # of JavaScript; its \d and \w are ASCII


def compiled(pattern: str) -> Grammar | None:
    try:
        return compile_regex(pattern)
    except GrammarError:
        return None  # it matches nothing


@settings(max_examples=150)
@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=20))
def test_a_text_is_accepted_if_re_matches_all_of_it(pattern: str, texts: list[str]) -> None:
    grammar = compiled(pattern)
    for text in texts:
        expected = re.fullmatch(pattern, text, re.ASCII) is not None
        assert (grammar is not None and accepts(grammar, text)) == expected, (pattern, text)


@settings(max_examples=100)
@given(PATTERNS, st.integers(0, 1 << 30))
def test_whatever_is_written_matches(pattern: str, seed: int) -> None:
    grammar = compiled(pattern)
    text = walk(grammar, seed, most=200) if grammar is not None else None
    for ours, theirs in ((r"[^\s", f"[^{SPACES}"), (r"\S", f"[^{SPACES}]"), (r"\s", f"[{SPACES}]")):
        pattern = pattern.replace(ours, theirs)
    assert text is None or re.fullmatch(pattern, text.decode(), re.ASCII)


@settings(max_examples=200)
@given(PATTERNS, st.sampled_from(["{}", "^{}", "{}$", "^{}$", "^{}|b$", "(^|a){}", "(?=.*b){}", "^(?!a){}"]), TEXTS)
def test_a_schema_searches_its_pattern(pattern: str, frame: str, text: str) -> None:
    pattern = frame.replace("{}", f"(?:{pattern})").replace(".", r"[^\n\r\u2028\u2029]")
    found = re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None
    try:
        grammar = compile_schema({"type": "string", "pattern": pattern})
    except GrammarError:
        assert not found
        return
    for ensure_ascii in (True, False):
        assert accepts(grammar, json.dumps(text, ensure_ascii=ensure_ascii)) == found, pattern


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        (r"\u00e9\x41\u{1F600}", ["éA😀"], ["eA😀"]),
        (r"\ud83d\ude00", ["😀"], [""]),
        (r"[\u0430-\u044f]+", ["привет"], ["hello", "Привет"]),
        (r"\p{Lu}\p{L}*\P{L}", ["Éa1", "A "], ["a1", "Ab"]),
        (r"\cA\t\0", ["\x01\t\0"], ["A"]),
        (r"[\w.-]+@[\w-]+\.(?<tld>com|org)", ["a.b@c.org"], ["a@b.net"]),
        (r"a{,3}", ["a{,3}"], ["aa"]),
        (r"[]a]", [], ["a", "]"]),
        (r"^$", [""], ["a"]),
        (r"[\d\-x]+", ["1-x"], ["a"]),
        (r"\d{3}-\d{4}|none", ["555-1234", "none"], ["5551234", "non"]),
    ],
)
def test_pattern(pattern: str, accepted: list[str], rejected: list[str]) -> None:
    grammar = compiled(pattern)
    assert all(grammar is not None and accepts(grammar, text) for text in accepted)
    assert not any(grammar is not None and accepts(grammar, text) for text in rejected)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (r"(a)\1", "back-reference"),
        (r"(?<=a)b", "lookbehind"),
        (r"\bword", r"\b"),
        (r"((?=a)b)*c", "inside a repetition"),
        ("(", "without its )"),
        (")", "without its ("),
        ("[a", "without its ]"),
        ("+a", "nothing before it"),
        ("[z-a]", "ends before it starts"),
        (r"\q", "unknown escape"),
        ("(?i)a", "cannot be enforced"),
        ("[^\\s\\S]", "no text matches"),
    ],
)
def test_what_cannot_be_enforced_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(says)):
        compile_regex(pattern)


@given(st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=8), st.text(LETTERS, max_size=4))
def test_a_choice_is_exactly_its_strings(strings: list[str], other: str) -> None:
    grammar = compile_choice(strings)
    assert all(accepts(grammar, text) for text in strings)
    assert accepts(grammar, other) == (other in strings)
