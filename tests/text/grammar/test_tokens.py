"""A mask has exactly the tokens that lead somewhere, whatever shortcuts were taken to find them."""

import json
from collections.abc import Iterator
from gc import collect
from pathlib import Path
from time import process_time
from typing import Any
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from random_schemas import Maker
from wgemma import GrammarError, Tokenizer
from wgemma.text.grammar import Grammar, State, TokenIndex, compile_regex, compile_schema
from wgemma.text.grammar.expressions import Pool

SCHEMA = {
    "properties": {
        "free": {"type": "string"},
        "short": {"type": "string", "maxLength": 5},
        "long": {"type": "string", "minLength": 3, "maxLength": 60000},
        "lower": {"type": "string", "pattern": "^[a-z]+$"},
        "name": {"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z][a-z]+)*$"},
        "found": {"type": "string", "pattern": "foo.*bar"},
        "words": {"type": "string", "pattern": r"^\S+@\S+$", "maxLength": 30},
        "uri": {"type": "string", "format": "uri"},
        "count": {"type": "integer", "minimum": 12, "maximum": 1234},
        "kind": {"enum": ["alpha", "alphabet", "é"]},
        "list": {"type": "array", "items": {"type": "boolean"}},
    }
}
PLACES = [
    '', '{', '{"', '{"fr', '{"free": ', '{"free": "', '{"free": "a\\', '{"free": "a\\u00', '{"short": "',
    '{"short": "abc', '{"short": "abcde', '{"long": "', '{"long": "abc', '{"lower": "', '{"lower": "a',
    '{"name": "', '{"name": "Ab',
    '{"found": "', '{"found": "foo', '{"found": "foobar', '{"words": "a', '{"words": "a@', '{"uri": "', '{"uri": "http://a',
    '{"count": ', '{"count": 1', '{"kind": "alpha', '{"list": [', '{"list": [true',
    '{"free": "x", "', '{"free": "x", "zz',
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary(shared: Path) -> list[bytes | None]:
    return Tokenizer.from_gguf(shared / "vocab" / "gemma4-vocab.gguf").token_bytes()


@pytest.fixture(scope="module")
def index(vocabulary: list[bytes | None]) -> TokenIndex:
    start = process_time()
    index = TokenIndex(vocabulary)
    assert process_time() - start < 2  # a third of a second if nobody else is using the machine
    return index


def has(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def state_after(grammar: Grammar, text: str | bytes) -> State:
    state = grammar.advance_all(grammar.start, text.encode() if isinstance(text, str) else text)
    assert state is not None, text
    return state


@pytest.mark.parametrize("text", PLACES)
def test_a_mask_of_the_real_vocabulary(index: TokenIndex, vocabulary: list[bytes | None], text: str) -> None:
    grammar = compile_schema(SCHEMA)
    state = state_after(grammar, text)
    mask = index.mask(grammar, state)
    for token in range(PLACES.index(text), len(vocabulary), 37):
        spelled = vocabulary[token]
        assert has(mask, token) == (bool(spelled) and grammar.advance_all(state, spelled or b"") is not None), spelled
    assert index.mask(grammar, state) is mask


PIECES = st.sampled_from(['"', "\\", "a", "b", "é", "😀", " ", ", ", ": ", "{", "}", "1", "\n", "ab", "u00", "null"])
TOKENS = st.lists(st.lists(PIECES, min_size=1, max_size=4).map(lambda parts: "".join(parts).encode()), max_size=60)


@settings(max_examples=80)
@given(st.integers(0, 1 << 40), TOKENS, st.lists(st.binary(min_size=1, max_size=2), max_size=10))
def test_masks_of_random_vocabularies(seed: int, tokens: list[bytes], broken: list[bytes]) -> None:
    try:
        grammar = compile_schema(Maker(seed).schema())
    except GrammarError:
        return
    vocabulary: list[bytes | None] = [*tokens, None, *broken, b"", b"end"]
    index = TokenIndex(vocabulary, ends=[len(vocabulary) - 1])
    states, seen = [grammar.start], 0
    for state in states:
        mask = index.mask(grammar, state)
        for token, text in enumerate(vocabulary[:-1]):
            following = grammar.advance_all(state, text) if text else None
            assert has(mask, token) == (following is not None), text
            if following is not None and len(states) < 12:
                states.append(following)
        assert has(mask, len(vocabulary) - 1) == grammar.accepts(state)
        seen += 1
    assert seen


def test_work_is_sliced(vocabulary: list[bytes | None]) -> None:
    index = TokenIndex(vocabulary)
    grammar = compile_regex("([A-Z][a-z]+ )*end")
    slices = list(_times(index.masking(grammar, grammar.start)))
    assert len(slices) > 3
    assert sorted(slices)[len(slices) // 2] < 0.015


def _times(work: Iterator[None]) -> Iterator[float]:
    last = process_time()
    for _ in work:
        now = process_time()
        yield now - last
        last = now


def test_compiling_and_the_first_mask_are_quick(index: TokenIndex, shared: Path) -> None:
    """Half under 20 ms and 99 of 100 under 300 ms is the aim; a busy machine gets twice as long."""
    times = []
    for line in (shared / "schemas" / "maskbench-sample.jsonl").read_text("utf-8").splitlines():
        schema: Any = json.loads(line)["schema"]
        start = process_time()
        try:
            grammar = compile_schema(schema)
            index.mask(grammar, grammar.start)
        except GrammarError:
            continue
        times.append(process_time() - start)
    times.sort()
    assert times[len(times) // 2] < 0.04
    assert times[len(times) * 99 // 100] < 0.6


def test_tokens_are_what_the_tokenizer_decodes(shared: Path, vocabulary: list[bytes | None]) -> None:
    tokenizer = Tokenizer.from_gguf(shared / "vocab" / "gemma4-vocab.gguf")
    for token in [*range(600), *range(600, len(vocabulary), 997)]:
        text = vocabulary[token]
        if text is not None and not tokenizer.text(token).startswith("<0x"):
            assert text.decode() == tokenizer.decode([token])
    assert vocabulary[tokenizer.id("<bos>")] is None


def test_a_vocabulary_forgets_grammars_that_nobody_uses_any_more() -> None:
    index = TokenIndex([bytes((byte,)) for byte in range(256)])

    def met(most: int) -> "ref[Pool]":
        grammar = compile_schema({"type": "string", "maxLength": most})
        index.mask(grammar, grammar.start)
        return ref(grammar._pool)

    pools = [met(most) for most in range(1, 600)]
    collect()
    assert sum(pool() is not None for pool in pools) <= 512
    assert pools[0]() is None
