"""The reply parser: the same parts however the stream is split, calls repaired or kept, linear time on hostile text."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from growth import growth, seconds
from wgemma.text.arguments import parse_call
from wgemma.text.reply import ReplyParser, ReplyPart, ToolCall
from wgemma.text.template import render

Q = '<|"|>'


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [tool("f", city={"type": "string"}, n={"type": "integer"}, note={"anyOf": [{"type": "string"}]})]


def joined(parts: list[ReplyPart]) -> list[ReplyPart]:
    whole: list[ReplyPart] = []
    for part in parts:
        if whole and part.kind != "tool_call" and whole[-1].kind == part.kind:
            whole[-1] = ReplyPart(part.kind, whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


def parse(*pieces: str, think: bool = True, **options: Any) -> list[ReplyPart]:
    parser = ReplyParser(think=think, **options)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return joined(parts + parser.finish())


def content(text: str) -> ReplyPart:
    return ReplyPart("content", text)


def thinking(text: str) -> ReplyPart:
    return ReplyPart("thinking", text)


def call(name: str, **arguments: Any) -> ReplyPart:
    return ReplyPart("tool_call", tool_call=ToolCall(name, arguments))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Hello", [content("Hello")]),
        (" Hello \n", [content(" Hello \n")]),
        ("<|channel>thought\nHm.\n<channel|>\n\nYes", [thinking("Hm."), content("Yes")]),
        ("<|channel>thought\n a\n b \n<channel|>Yes", [thinking(" a\n b"), content("Yes")]),
        ("<|channel>thought\n<channel|>Yes", [content("Yes")]),
        ("<|channel>thought<channel|>Yes", [content("Yes")]),
        ("<|channel><channel|>Yes", [content("Yes")]),
        ("<|channel>final\nabc<channel|>Yes", [thinking("final\nabc"), content("Yes")]),
        ("<|channel>thoughtful<channel|>Yes", [thinking("thoughtful"), content("Yes")]),
        ("<|channel>thought\nunclosed", [thinking("unclosed")]),
        ("a \n<|channel>thought\nb<channel|> c", [content("a"), thinking("b"), content("c")]),
        ("<channel|>\nYes", [content("Yes")]),
        ("a <channel|> b", [content("a b")]),
        ("1 < 2 <| 3 <|tool", [content("1 < 2 <| 3 <|tool")]),
        ("<<|channel>thought\nx<channel|>", [content("<"), thinking("x")]),
        ("Look: \n<|tool_call>call:f{n:1}<tool_call|>", [content("Look:"), call("f", n=1)]),
        ("<|tool_call>call:f{}<tool_call|> <tool_call|>\n<|tool_response>", [call("f")]),
        ("<|tool_call>call:f{}<tool_call|>\n<tool_call|> Done", [call("f"), content("Done")]),
        ("<|tool_call>call:f{n:1}<tool_call|>\n<|tool_call>call:g{}<tool_call|>", [call("f", n=1), call("g")]),
        ("<|tool_call>call:f{n:1}<|tool_call>call:g{}<tool_call|>", [call("f", n=1), call("g")]),
        ("<|tool_call><|tool_call>call:f{}<tool_call|>", [call("f")]),
        ("<|tool_call>call:f{n:1}<|tool_response>", [call("f", n=1)]),
        ("<|tool_call>call:f{n:1}", [call("f", n=1)]),
        ("<|channel>thought\n<|tool_call>x<channel|>y", [thinking("<|tool_call>x"), content("y")]),
    ],
)
def test_replies_fall_into_parts(text: str, parts: list[ReplyPart]) -> None:
    assert parse(text) == parts
    assert parse(*text) == parts


def test_thinking_is_left_out_unless_asked_for() -> None:
    assert parse("a<|channel>thought\nb<channel|>c", think=False) == [content("ac")]
    assert parse("b<channel|>c", think=False, in_thought=True) == [content("c")]


def test_a_reply_may_start_inside_a_thought() -> None:
    assert parse("thought\nb \n<channel|> c", in_thought=True) == [thinking("thought\nb"), content("c")]
    assert parse("<|channel>thought\nb<channel|>c", in_thought=True) == [thinking("b"), content("c")]


def test_text_streams_without_waiting_for_the_end() -> None:
    parser = ReplyParser()
    assert parser.feed("Hello, ") == [content("Hello,")]
    assert parser.feed("wor <|chan") == [content(" wor")]
    assert parser.feed("ge") == [content(" <|change")]
    assert parser.finish() == []
    assert parser.finish() == []


TAGS = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", Q]
HALF_TAGS = ["<", "|", ">", "<|", "|>", "<|chan", "<|tool_", "<tool_call", "<chan"]
CALL_BITS = ["call:f{", "call:", "city:", "n:1", "}", "{", "[", "]", ",", ":", "'", '"', "\\"]
WORDS = ["thought\n", "thought", "tho", " ", "\n", "\n\n", "\t", "a", "Paris", "-1.5e3", "true", "é🚀"]
FRAGMENTS = st.sampled_from([*TAGS, *HALF_TAGS, *CALL_BITS, *WORDS])
STREAMS = st.lists(FRAGMENTS, max_size=24).map("".join)


@settings(max_examples=500, deadline=None)
@given(text=STREAMS, think=st.booleans(), in_thought=st.booleans(), cuts=st.lists(st.integers(0, 150), max_size=12))
def test_any_way_of_cutting_the_stream_gives_the_same_parts(
    text: str, think: bool, in_thought: bool, cuts: list[int]
) -> None:
    whole = parse(text, think=think, in_thought=in_thought, tools=TOOLS)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert "".join(pieces) == text
    assert parse(*pieces, think=think, in_thought=in_thought, tools=TOOLS) == whole
    assert parse(*text, think=think, in_thought=in_thought, tools=TOOLS) == whole


@settings(max_examples=300, deadline=None)
@given(text=STREAMS)
def test_control_tags_never_reach_the_content(text: str) -> None:
    for part in parse(text):
        if part.kind == "content":
            assert not any(tag in part.text for tag in ("<|tool_call>", "<|channel>"))


@settings(max_examples=300, deadline=None)
@given(body=STREAMS)
def test_every_call_comes_out_read_or_with_its_markup(body: str) -> None:
    assume(not any(tag in body for tag in ("<|tool_call>", "<tool_call|>", "<|tool_response>")))
    part = parse(f"<|tool_call>call:f{{{body}<tool_call|>", tools=TOOLS)[0]
    assert part.tool_call is not None
    assert part.tool_call.name == "f"
    if part.tool_call.error:
        assert part.tool_call.raw == f"call:f{{{body}"


KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_ .-]*[A-Za-z0-9_]", fullmatch=True)
PLAIN = st.text(max_size=20).filter(lambda text: "<" not in text)
TEXTS = PLAIN | st.sampled_from(["{a:1}", '"', "'x'", " \n", "<b>", "<|", "]", "true"])
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=16,
)


@settings(max_examples=300, deadline=None)
@given(arguments=st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_rendered_tool_call_parses_back_to_its_arguments(arguments: dict[str, Any]) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    prompt = render([{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": calls}])
    reply = prompt.partition("<|turn>model\n")[2]
    assert parse(reply) == [ReplyPart("tool_call", tool_call=ToolCall("f", arguments))]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("{}", {}),
        (" { n : 1 , city : true } ", {"n": 1, "city": True}),
        (f'{{city:{Q}a "b" {{c}},\n[d]{Q}}}', {"city": 'a "b" {c},\n[d]'}),
        (f"{{{Q}a:b{Q}:[1,-2.5e1,[],{{}},null]}}", {"a:b": [1, -25.0, [], {}, None]}),
        ('{"city":"a\\u0062\\n"}', {"city": "ab\n"}),
    ],
)
def test_the_grammar_reads_as_json(arguments: str, meant: dict[str, Any]) -> None:
    assert parse_call("call:f" + arguments) == ToolCall("f", meant)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (f"{{city:{Q}Paris}}", {"city": "Paris"}),
        (f"{{city:{Q}Paris", {"city": "Paris"}),
        (f"{{o:{{l:[{Q}a{Q},{Q}b] }}}}", {"o": {"l": ["a", "b"]}}),
        (f"{{code:{Q}if x {{ y }}}}", {"code": "if x { y }"}),
        ("{city:'Paris',n:2}", {"city": "Paris", "n": 2}),
        ("{city:'it's here',n:2}", {"city": "it's here", "n": 2}),
        ("{'city':'a\\'b'}", {"city": "a'b"}),
        ('{city:"a "b" c"}', {"city": 'a "b" c'}),
        ('{city:"a\\d"}', {"city": "a\\d"}),
        ("{city:Paris}", {"city": "Paris"}),
        ("{note:not me, you}", {"note": "not me, you"}),
        ("{city:Paris, France,n:2}", {"city": "Paris, France", "n": 2}),
        ("{city:if x {a, b: c},n:2}", {"city": "if x {a, b: c}", "n": 2}),
        ("{other:2026-01-01,b:007}", {"other": "2026-01-01", "b": "007"}),
        ("{n:[1,2", {"n": [1, 2]}),
        ("{n:[1,2}", {"n": [1, 2]}),
        ("{n:[{a:1]}", {"n": [{"a": 1}]}),
        ("{n:1,}", {"n": 1}),
        ("{n:1}}", {"n": 1}),
        ("{n:[red,green]}", {"n": ["red", "green"]}),
    ],
)
def test_broken_calls_are_mended(arguments: str, meant: dict[str, Any]) -> None:
    assert parse_call("call:f" + arguments, TOOLS) == ToolCall("f", meant)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", ""),
        ("weather in Paris", ""),
        ("call:{a:1}", ""),
        ("call:f(1)", ""),
        ("call:f{city:}", "f"),
        ("call:f{city", "f"),
        ("call:f{n:1} and so on", "f"),
        (f"call:f{{a:{Q}x,b:{Q}y{Q}}}", "f"),
    ],
)
def test_calls_beyond_mending_keep_their_markup_and_say_why(text: str, name: str) -> None:
    failed = parse_call(text, TOOLS)
    assert (failed.name, failed.arguments, failed.raw) == (name, {}, text)
    assert failed.error


def test_a_call_without_arguments_may_leave_out_the_braces() -> None:
    assert parse_call("call:now") == ToolCall("now")


@pytest.mark.parametrize("tools", [5, [5], [{}], [{"function": {"name": "f", "parameters": {"properties": [1]}}}]])
def test_tools_of_any_shape_are_tolerated(tools: Any) -> None:
    assert parse_call("call:f{city:Paris}", tools) == ToolCall("f", {"city": "Paris"})


HOSTILE = {
    "braces": "{",
    "brackets": "[",
    "quotes": Q,
    "calls": "<|tool_call>",
    "channels": "<|channel>",
    "closers": "a<channel|>",
    "spaces": " ",
    "angles": "<",
    "half tags": "<|tool_",
    "apostrophes": "'a,",
    "double quotes": '"a,',
    "escaped quotes": '"\\"x,',
    "values": "a:b ,",
    "strings": f"a:{Q}b{Q},",
    "commas": ",   ",
    "colons": "a:",
}


def parsing(stream: str, step: int) -> Callable[[], None]:
    pieces = [stream[i : i + step] for i in range(0, len(stream), step)]

    def work() -> None:
        parser = ReplyParser(think=True, tools=TOOLS)
        for piece in pieces:
            parser.feed(piece)
        parser.finish()

    return work


def assert_linear(small: str, large: str, step: int) -> None:
    """Ten times the text takes about ten times as long, or so little that the clock is all noise. The bound is halfway
    to the hundred of quadratic growth: on a busy machine a few milliseconds vary by half."""
    work = parsing(large, step)
    assert seconds(work) < 0.03 or growth(parsing(small, step), work, 30) < 30


@pytest.mark.parametrize("prefix", ["", "<|channel>", "<|tool_call>call:f{city:", "<|tool_call>call:f{x:["])
@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_time_grows_with_the_length_of_hostile_text(unit: str, prefix: str) -> None:
    small, large = 10_000 // len(unit), 100_000 // len(unit)
    assert_linear(prefix + unit * small, prefix + unit * large, 1_000_000)


@pytest.mark.parametrize("prefix", ["", "<|channel>thought\n", "<|tool_call>call:f{city:"])
@pytest.mark.parametrize("unit", [" ", "a ", "<", "<|tool_call", Q])
def test_time_grows_with_the_length_fed_character_by_character(unit: str, prefix: str) -> None:
    small, large = unit * (20_000 // len(unit)), unit * (200_000 // len(unit))
    assert_linear(prefix + small, prefix + large, 1)
