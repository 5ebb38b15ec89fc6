"""States: what is forced, what may follow, where a text may end."""

import pytest

from wgemma.text.grammar import Grammar, State, compile_choice, compile_regex, compile_schema


def state_after(grammar: Grammar, text: str) -> State:
    state = grammar.advance_all(grammar.start, text.encode())
    assert state is not None
    return state


def allowed(grammar: Grammar, text: str) -> bytes:
    mask = grammar.allowed(state_after(grammar, text))
    return bytes(byte for byte in range(256) if mask >> byte & 1)


OBJECT = compile_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"enum": ["small", "smart"]}, "on": {"type": "boolean"}},
        "required": ["name", "size"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        ("", b'{"name": "'),
        ('{"name": "a', b""),
        ('{"name": "a"', b', "size": "sma'),
        ('{"name": "", "size": "smal', b'l"'),
        ('{"name": "", "size": "small"', b""),
        ('{"name": "", "size": "small",', b' "on": '),
        ('{"name": "", "size": "small", "on": t', b"rue}"),
        ('{"name": "", "size": "small", "on": true}', b""),
    ],
)
def test_forced_text(text: str, forced: bytes) -> None:
    assert OBJECT.forced(state_after(OBJECT, text)) == forced


def test_forced_text_has_a_bound() -> None:
    grammar = compile_regex("a{50000}")
    assert grammar.forced(grammar.start) == b"a" * 4096


def test_what_may_follow() -> None:
    assert allowed(OBJECT, "") == b"{"
    assert allowed(OBJECT, '{"name": "", "size": "small"') == b",}"
    assert allowed(OBJECT, '{"name": "", "size": "small", "on": ') == b"ft"
    assert allowed(OBJECT, '{"name": "é'[:-1] + "\\") == b'"\\bfnrtu'


def test_where_a_text_ends() -> None:
    grammar = compile_choice(["yes", "yes!", "no"])
    yes, no = state_after(grammar, "yes"), state_after(grammar, "no")
    assert grammar.accepts(yes) and not grammar.only_ends(yes)
    assert grammar.accepts(no) and grammar.only_ends(no)
    assert not grammar.accepts(grammar.start)


def test_equal_places_are_equal_states() -> None:
    """Masks are kept per state, so a long text must not make new ones for ever."""
    grammar = compile_schema({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "string"}}})
    item = '{"a": "some text", "b": "x"}, '
    assert state_after(grammar, "[" + item) is state_after(grammar, "[" + item * 5)
    assert state_after(grammar, '[{"a": "x') is state_after(grammar, '[{"a": "yz')
    assert {state_after(grammar, "[")}  # hashable


def test_invalid_utf8_never_passes() -> None:
    state = state_after(OBJECT, '{"name": "')
    assert OBJECT.advance_all(state, "é".encode()) is not None
    for text in (b"\xff", b"\xc3x", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80"):
        assert OBJECT.advance_all(state, text) is None
