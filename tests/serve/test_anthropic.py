"""Anthropic's API, by a running server and by the translators alone."""

import base64
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY, Api
from event_shapes import ANTHROPIC_ERROR, MESSAGE, check, check_message_stream, named_events
from wgemma.engine.endings import Usage
from wgemma.serve.anthropic import read_message
from wgemma.serve.anthropic_events import MessageWriter
from wgemma.serve.ask import Ask, Call, Finish, Started, Text, Thinking
from wgemma.serve.fields import Fields
from wgemma.serve.problems import Problem

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "What is 2+3?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
THINKS = {"type": "enabled", "budget_tokens": 1024}


def message(api: Api, **fields: Any) -> Any:
    return api.ask(PATH, {"model": TINY, "max_tokens": 60, "messages": HELLO, **fields})


def test_a_message_in_one_piece(api: Api) -> None:
    answer = check(MESSAGE, message(api, thinking=THINKS).json)
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert answer["content"][1]["text"] == "2 + 3 = 5" and answer["stop_reason"] == "end_turn"


def test_a_message_in_events(api: Api) -> None:
    events = check_message_stream(message(api, stream=True, thinking=THINKS).text)
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    start, end = events[0]["message"]["usage"], events[-2]["usage"]
    for name in ("input_tokens", "cache_read_input_tokens"):
        assert start[name] == end[name]


def test_input_tokens_are_those_that_were_not_reused(api: Api) -> None:
    first, again = (check(MESSAGE, message(api).json)["usage"] for _ in range(2))
    assert again["input_tokens"] == 1
    assert sum(first.values()) == sum(again.values())
    counted = api.ask(f"{PATH}/count_tokens", {"model": TINY, "messages": HELLO}).json
    assert counted == {"input_tokens": again["input_tokens"] + again["cache_read_input_tokens"]}


def test_a_tool_is_used_and_its_result_read(api: Api) -> None:
    tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}]
    events = check_message_stream(message(api, messages=ASKS_WEATHER, tools=tools, stream=True).text)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    answer = check(MESSAGE, message(api, messages=ASKS_WEATHER, tools=tools).json)
    (use,) = answer["content"]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "sunny"}]}
    turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    more = check(MESSAGE, message(api, messages=[*ASKS_WEATHER, *turns], tools=tools, max_tokens=8).json)
    assert "sunny" in more["content"][0]["text"]


def test_the_stop_sequence_is_named(api: Api) -> None:
    answer = check(MESSAGE, message(api, stop_sequences=[" =", "x"]).json)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " =")
    events = check_message_stream(message(api, stop_sequences=[" ="], stream=True).text)
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " ="}
    assert check(MESSAGE, message(api, max_tokens=2).json)["stop_reason"] == "max_tokens"


def test_it_sees(api: Api, data: Path) -> None:
    encoded = base64.b64encode((data / "embedded/colour-and-shape-0.png").read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    asked = [{"type": "image", "source": source}, {"type": "text", "text": "What do you see?"}]
    answer = check(MESSAGE, message(api, messages=[{"role": "user", "content": asked}]).json)
    assert "triangle" in answer["content"][0]["text"]


def test_a_last_message_of_the_assistant_is_continued(api: Api) -> None:
    turns = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am wgemma"}]
    assert check(MESSAGE, message(api, messages=turns).json)["content"][0]["text"].startswith(" tiny")


@pytest.mark.parametrize(
    ("fields", "status", "kind"),
    [
        ({"model": "nope"}, 404, "not_found_error"),
        ({"max_tokens": None}, 400, "invalid_request_error"),
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 400, "invalid_request_error"),
    ],
)
def test_errors(api: Api, fields: Any, status: int, kind: str) -> None:
    for stream in (False, True):
        answer = message(api, **fields, stream=stream)
        assert answer.status == status
        assert check(ANTHROPIC_ERROR, answer.json)["error"]["type"] == kind


# -- the translators alone


def read(**fields: Any) -> Ask:
    return read_message(Fields({"model": "m", "max_tokens": 9, "messages": HELLO, **fields}))


def test_the_line_that_changes_with_every_request_is_dropped() -> None:
    changing = "x-anthropic-billing-header: cc_version=1; cch=abc"
    system = [{"type": "text", "text": text} for text in (changing, "A")]
    assert read(system=system).messages == [{"role": "system", "content": "A"}, *HELLO]
    assert read(system=f"{changing}\nA\nB").messages == [{"role": "system", "content": "A\nB"}, *HELLO]


def test_results_come_before_what_the_user_says() -> None:
    said = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
    ]
    told = [
        {"type": "text", "text": "and?"},
        {"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True, "cache_control": {"type": "x"}},
    ]
    ask = read(messages=[*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": told}])
    assert ask.messages is not None
    assert ask.messages[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "thinking": "hm",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "Error: no"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "get_weather"}, "get_weather"),
    ],
)
def test_tool_choices(choice: dict[str, Any], wanted: str) -> None:
    ask = read(tools=[WEATHER], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert (ask.tool_choice, ask.parallel) == (wanted, False)


def test_thinking_and_formats() -> None:
    assert (read(thinking=THINKS).think, read(thinking=THINKS).thinking_budget) == (True, 1024)
    assert read(thinking={"type": "disabled"}).think is False
    assert read(thinking={"type": "adaptive"}, output_config={"effort": "low"}).think == "low"
    form = {"type": "json_schema", "schema": {"type": "object"}}
    assert read(output_config={"format": form}).format == read(output_format=form).format == {"type": "object"}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}},
        {"type": "image", "source": {"type": "base64", "data": "/etc/passwd"}},
        {"type": "image"},
        {"type": "document", "source": {"type": "base64", "data": "x"}},
        {"type": "tool_result"},
        {},
    ],
)
def test_blocks_that_are_refused(block: Any) -> None:
    with pytest.raises(Problem):
        read(messages=[{"role": "user", "content": [block]}])


def test_every_event_of_a_message_with_everything() -> None:
    writer = MessageWriter(read())
    events = [Started(3, 1), Thinking("hm"), Text("a"), Text(""), Call("f", {"x": 1}), Call("g", {}, 1), Text("b")]
    lines = [*writer.begin(), *(line for event in events for line in writer.write(event))]
    lines += [*writer.write(Finish("tool", Usage(3, 1, 9))), *writer.end()]
    found = check_message_stream("".join(lines))
    kinds = [event["content_block"]["type"] for event in found if event["type"] == "content_block_start"]
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "text"]


def test_an_answer_without_a_word_is_a_message_all_the_same() -> None:
    writer = MessageWriter(read())
    lines = [*writer.write(Started(3, 1)), *writer.write(Finish("stop", Usage(3, 1, 0))), *writer.end()]
    check_message_stream("".join(lines))


def test_an_error_in_mid_stream_is_an_event() -> None:
    (event,) = named_events("".join(MessageWriter(read()).fail(Problem(503, "Gone."))))
    assert check(ANTHROPIC_ERROR, event)["error"]["type"] == "overloaded_error"
