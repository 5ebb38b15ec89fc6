"""A call that the grammar wrote is one that the reply parser reads, with arguments the declaration allows."""

import random
from typing import Any

import pytest

from wgemma import GrammarError
from wgemma.text.arguments import parse_call
from wgemma.text.grammar import Grammar, State, TokenIndex
from wgemma.text.grammar.tools import CLOSE, SYMBOLS, compile_tools
from wgemma.text.segments import QUOTE, Writer, write_entries

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["C", "F"]},
                "City": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}},
                "at": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
                "note": {"type": "STRING", "nullable": True},
                "odd: key": {"type": "boolean"},
            },
            "required": ["City", "days"],
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}
TEXT_OF = {symbol: text for text, symbol in SYMBOLS.items()}


def symbols(text: str) -> list[int]:
    """A call as the automaton sees it: bytes, and special tokens as one symbol each."""
    result: list[int] = []
    for i, part in enumerate(text.split(QUOTE)):
        result += [SYMBOLS[QUOTE]] if i else []
        head, close, _ = part.partition(CLOSE)
        result += [*head.encode(), *([SYMBOLS[CLOSE]] if close else [])]
    return result


def after(grammar: Grammar, text: str) -> State | None:
    state: State | None = grammar.start
    for symbol in symbols(text):
        state = grammar.advance(state, symbol) if state is not None else None
    return state


def accepted(grammar: Grammar, text: str) -> bool:
    state = after(grammar, text.replace("'", QUOTE) + CLOSE)
    return state is not None and grammar.only_ends(state)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("call:stop{}", True),
        ("call:get_weather{City:'Köln',days:3}", True),
        ("call:get_weather{at:{lat:1.5,lon:-2},City:'<b>',days:14,tags:['a','b'],unit:'C'}", True),
        ("call:get_weather{City:'x',days:3,note:null}", True),
        ("call:get_weather{City:'x',days:3,\"odd: key\":true}", True),
        ("call:get_weather{City:'',days:1,tags:[]}", True),
        ("call:get_weather{City:'x'}", False),
        ("call:get_weather{days:3,City:'x'}", False),
        ("call:get_weather{City:'x',days:15}", False),
        ("call:get_weather{City:'x',days:3,unit:'K'}", False),
        ("call:get_weather{City:x,days:3}", False),
        ("call:get_weather{City:'x',days:3,colour:'red'}", False),
        ("call:get_weather{City:'x',days:3,tags:['much too long']}", False),
        ("call:stop{a:1}", False),
        ("call:forecast{}", False),
        ("call:stop", False),
    ],
)
def test_call(call: str, expected: bool) -> None:
    assert accepted(compile_tools([WEATHER, STOP]), call) == expected


@pytest.mark.parametrize("text", ["<|tool_response>", "<tool_call|>", '<|"|>', "a<|channel>"])
def test_text_cannot_spell_markup(text: str) -> None:
    grammar = compile_tools([WEATHER])
    state = after(grammar, "call:get_weather{City:" + QUOTE)
    assert state is not None
    assert grammar.advance_all(state, text.encode()) is None
    assert grammar.advance_all(state, text[:-1].encode()) is not None


def walk(grammar: Grammar, seed: int) -> str | None:
    draw = random.Random(seed)
    state, pieces = grammar.start, bytearray()
    for _ in range(600):
        if grammar.only_ends(state):
            return pieces.decode()
        allowed = grammar.allowed(state)
        choices = [symbol for symbol in range(258) if allowed >> symbol & 1]
        ending = [symbol for symbol in choices if symbol > 255 or symbol in b"}]"]
        symbol = ending[-1] if ending and draw.random() < 0.3 else draw.choice(choices)
        following = grammar.advance(state, symbol)
        assert following is not None
        state = following
        pieces += TEXT_OF[symbol].encode() if symbol > 255 else bytes((symbol,))
    return None


def test_whatever_is_written_is_read_as_it_was_meant() -> None:
    grammar = compile_tools([WEATHER, STOP])
    ends = 0
    for seed in range(150):
        text = walk(grammar, seed)
        if text is None:
            continue
        ends += 1
        call = parse_call(text.removesuffix(CLOSE))
        assert call.error is None, text
        assert call.name in ("stop", "get_weather")
        if call.name == "get_weather":
            assert {"City", "days"} <= call.arguments.keys()
            assert isinstance(call.arguments["City"], str)
            assert 1 <= call.arguments["days"] <= 14
            assert call.arguments.get("unit", "C") in ("C", "F")
            out = Writer()
            write_entries(out, call.arguments, quote_keys=False)
    assert ends > 100


def test_a_call_as_the_template_writes_it_is_accepted() -> None:
    arguments = {"days": 2, "City": "Zürich", "tags": ["a"], "at": {"lon": 8.5, "lat": 47.4}}
    out = Writer()
    out.mark("call:get_weather{")
    write_entries(out, arguments, quote_keys=False)
    out.mark("}")
    text = "".join(segment.text for segment in out.segments())
    assert accepted(compile_tools([WEATHER]), text.replace(QUOTE, "'"))


def test_one_tool_can_be_demanded() -> None:
    grammar = compile_tools([WEATHER, STOP], only="stop")
    assert grammar.forced(grammar.start) == b"call:stop{}"
    with pytest.raises(GrammarError, match="no tool named go"):
        compile_tools([WEATHER], only="go")


def test_special_tokens_are_in_the_mask() -> None:
    tokens = [b"call:", b"stop{}", None, None, b"x"]
    index = TokenIndex(tokens, symbols={2: SYMBOLS[QUOTE], 3: SYMBOLS[CLOSE]})
    grammar = compile_tools([STOP])
    end = after(grammar, "call:stop{}")
    assert end is not None
    assert index.mask(grammar, grammar.start)[0] == 0b00001
    assert index.mask(grammar, end)[0] == 0b01000


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [3],
        [{"function": {}}],
        [STOP, STOP],
        [{"function": {"name": "a b"}}],
        [{"function": {"name": "a", "parameters": 3}}],
        [
            {
                "function": {
                    "name": "a",
                    "parameters": {"pattern": "(", "type": "object", "properties": {"a": {"pattern": "("}}},
                }
            }
        ],
    ],
)
def test_bad_tools_are_refused(tools: list[Any]) -> None:
    with pytest.raises(GrammarError):
        compile_tools(tools)


def test_arguments_may_be_called_like_the_words_of_a_schema() -> None:
    properties = {
        "nullable": {"type": "BOOLEAN"},
        "type": {"enum": [{"type": "A", "nullable": True}]},
        "properties": {"type": "object", "properties": {"b": {"type": "null"}, "A": {"type": "null"}}},
    }
    function = {"name": "f", "parameters": {"properties": properties, "required": [*properties]}}
    grammar = compile_tools([{"type": "function", "function": function}])
    assert accepted(grammar, "call:f{nullable:true,properties:{A:null,b:null},type:{nullable:true,type:'A'}}")
    assert not accepted(grammar, "call:f{nullable:null,properties:{},type:{nullable:true,type:'A'}}")
    assert not accepted(grammar, "call:f{nullable:true,properties:{},type:{nullable:true,type:'a'}}")
