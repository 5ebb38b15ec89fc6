"""Answers that parse and calls that are made, by all three APIs: formats, tool choices and their limits."""

import json
from typing import Any

import pytest

from api_server import TINY, Api
from event_shapes import (
    CHAT,
    LINES,
    MESSAGE,
    RESPONSE,
    check,
    check_chat_stream,
    check_lines,
    check_message_stream,
    check_response_stream,
)
from json_checker import valid

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "What is 2+3?"}]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "pick", "description": "Picks a number", "parameters": NUMBER}},
]
OWN_TOOLS = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in TOOLS]


def fits(text: str) -> None:
    assert valid(SCHEMA, json.loads(text)), text


@pytest.mark.parametrize("stream", [False, True])
def test_openai_formats(api: Api, stream: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    answer = api.ask(
        "/v1/chat/completions", {"model": TINY, "messages": ASKED, "response_format": form, "stream": stream}
    )
    if stream:
        chunks = check_chat_stream(answer.text)
        fits("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks))
    else:
        fits(check(CHAT, answer.json)["choices"][0]["message"]["content"])


def test_any_object_will_do(api: Api) -> None:
    form = {"type": "json_object"}
    body = {"model": TINY, "messages": ASKED, "response_format": form, "max_tokens": 200, "seed": 1}
    choice = check(CHAT, api.ask("/v1/chat/completions", body).json)["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)


@pytest.mark.parametrize("stream", [False, True])
def test_formats_of_responses(api: Api, stream: bool) -> None:
    form = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}
    body = {"model": TINY, "input": "What is 2+3?", "text": {"format": form}, "stream": stream}
    answer = api.ask("/v1/responses", body)
    response = check_response_stream(answer.text)[-1]["response"] if stream else check(RESPONSE, answer.json)
    fits(response["output"][0]["content"][0]["text"])


@pytest.mark.parametrize("think", [False, True])
def test_formats_of_ollama(api: Api, think: bool) -> None:
    body = {"model": TINY, "messages": ASKED, "format": SCHEMA, "think": think, "stream": False}
    answer = check(LINES[True][True], api.ask("/api/chat", body).json)
    fits(answer["message"]["content"])
    lines = check_lines(api.ask("/api/generate", {"model": TINY, "prompt": "x", "format": SCHEMA}).text, chat=False)
    fits("".join(line["response"] for line in lines))


def test_formats_of_anthropic(api: Api) -> None:
    form = {"type": "json_schema", "schema": SCHEMA}
    body = {"model": TINY, "max_tokens": 99, "messages": ASKED, "output_config": {"format": form}}
    fits(check(MESSAGE, api.ask("/v1/messages", body).json)["content"][0]["text"])


def test_a_schema_that_is_none_is_refused(api: Api) -> None:
    for schema in ({"type": "nonsense"}, {"$ref": "#/nowhere"}, {"pattern": "("}):
        given = {"model": TINY, "messages": ASKED, "max_tokens": 9}
        assert api.ask("/api/chat", {**given, "format": schema}).status == 400
        form = {"type": "json_schema", "schema": schema}
        assert api.ask("/v1/messages", {**given, "output_format": form}).status == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_call_is_made_if_it_must_be(api: Api, choice: Any, stream: bool) -> None:
    body = {"model": TINY, "messages": ASKED, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    answer = api.ask("/v1/chat/completions", {**body, "stream": stream})
    if stream:
        chunks = check_chat_stream(answer.text)
        deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        name = deltas[0]["function"]["name"]
        arguments = "".join(call["function"]["arguments"] for call in deltas)
    else:
        (call,) = check(CHAT, answer.json)["choices"][0]["message"]["tool_calls"]
        name, arguments = call["function"]["name"], call["function"]["arguments"]
    assert valid(NUMBER if name == "pick" else CITY, json.loads(arguments))
    assert choice == "required" or name == "pick"


def test_no_call_is_made_if_none_may_be(api: Api) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    body = {"model": TINY, "messages": messages, "tools": TOOLS, "tool_choice": "none", "max_tokens": 20}
    message = check(CHAT, api.ask("/v1/chat/completions", body).json)["choices"][0]["message"]
    assert "tool_calls" not in message and "call:" not in (message["content"] or "")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "pick"}])
def test_anthropic_tool_choices(api: Api, choice: Any) -> None:
    body = {"model": TINY, "max_tokens": 99, "messages": ASKED, "tools": OWN_TOOLS}
    body["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    message = check(MESSAGE, api.ask("/v1/messages", body).json)
    (use,) = [block for block in message["content"] if block["type"] == "tool_use"]
    assert message["stop_reason"] == "tool_use"
    assert valid(NUMBER if use["name"] == "pick" else CITY, use["input"])
    assert choice["type"] == "any" or use["name"] == "pick"
    events = check_message_stream(api.ask("/v1/messages", {**body, "stream": True}).text)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_responses_tool_choices(api: Api) -> None:
    tools = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice = {"type": "function", "name": "pick"}
    body = {"model": TINY, "input": "x", "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    events = check_response_stream(api.ask("/v1/responses", {**body, "stream": True}).text)
    calls = [item for item in events[-1]["response"]["output"] if item["type"] == "function_call"]
    assert [call["name"] for call in calls] == ["pick"] and valid(NUMBER, json.loads(calls[0]["arguments"]))
