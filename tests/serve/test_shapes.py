"""The checks of streams can fail: replies that break real clients do not pass them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from event_shapes import check_chat_stream, check_lines, check_message_stream, check_response_stream
from wgemma.engine.endings import Usage
from wgemma.serve.anthropic_events import MessageWriter
from wgemma.serve.ask import Ask, Call, Event, Finish, Started, Text, Thinking
from wgemma.serve.fields import Fields
from wgemma.serve.ollama import LineWriter
from wgemma.serve.openai import ChatWriter
from wgemma.serve.openai_events import ResponseWriter
from wgemma.serve.wire import Writer

ASK = Ask("m", [{"role": "user", "content": "x"}], stream=True)
EVENTS: list[Event] = [
    Started(3, 1),
    Thinking("hm"),
    Text("a"),
    Call("f", {"x": 1}),
    Finish("tool", Usage(3, 1, 9)),
]
WRITERS: dict[str, tuple[Callable[[], Writer], Callable[[str], Any]]] = {
    "chat": (lambda: ChatWriter(ASK), check_chat_stream),
    "response": (lambda: ResponseWriter(ASK, Fields({})), check_response_stream),
    "message": (lambda: MessageWriter(ASK), check_message_stream),
    "lines": (lambda: LineWriter(ASK, chat=True), lambda text: check_lines(text, chat=True)),
}
# What may come any number of times: the stream is well-formed without it, or with two of it.
ANY_NUMBER = {
    "chat": ('"content":"', '"reasoning"'),
    "response": (),
    "message": ('"ping"', "content_block_delta"),
    "lines": ('"done":false',),
}
NOTICED = (AssertionError, KeyError, ValueError, IndexError)


def stream(writer: Writer) -> list[str]:
    begun = list(writer.begin())
    return [*begun, *(line for event in EVENTS for line in writer.write(event)), *writer.end()]


def changed(line: str, change: Callable[[Any], Any]) -> str:
    """A line with another value in it."""
    head, brace, rest = line.partition("{")
    value = json.loads(brace + rest)
    change(value)
    return head + json.dumps(value) + line[len(line.rstrip("\n")) :]


@pytest.mark.parametrize("name", WRITERS)
def test_what_we_write_passes(name: str) -> None:
    make, check = WRITERS[name]
    check("".join(stream(make())))


@pytest.mark.parametrize("name", WRITERS)
def test_an_event_that_is_missing_or_doubled_is_noticed(name: str) -> None:
    make, check = WRITERS[name]
    whole = stream(make())
    for i, line in enumerate(whole):
        if any(mark in line for mark in ANY_NUMBER[name]):
            continue
        for broken in ([*whole[:i], *whole[i + 1 :]], [*whole[: i + 1], *whole[i:]]):
            with pytest.raises(NOTICED):
                check("".join(broken))


@pytest.mark.parametrize("name", WRITERS)
def test_a_field_that_is_missing_is_noticed(name: str) -> None:
    make, check = WRITERS[name]
    whole = stream(make())
    for i, line in enumerate(whole):
        for key in json.loads(line[line.index("{") :]) if "{" in line else ():
            broken = changed(line, lambda value, key=key: value.pop(key))
            with pytest.raises(NOTICED):
                check("".join([*whole[:i], broken, *whole[i + 1 :]]))


CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("an empty finish_reason", lambda v: v["choices"][0].update(finish_reason="")),
    ("no delta", lambda v: v["choices"][0].pop("delta")),
    ("no index", lambda v: v["choices"][0].pop("index")),
    ("no choices", lambda v: v.pop("choices")),
    ("a usage nobody asked for", lambda v: v.update(usage=None)),
    ("a role in every delta", lambda v: v["choices"][0]["delta"].update(role="assistant")),
]


@pytest.mark.parametrize(("what", "change"), CHANGES, ids=[what for what, _ in CHANGES])
def test_chunks_that_break_clients_are_noticed(what: str, change: Callable[[Any], Any]) -> None:
    whole = stream(ChatWriter(ASK))
    for i, line in enumerate(whole[1:-1], 1):
        with pytest.raises(AssertionError):
            check_chat_stream("".join([*whole[:i], changed(line, change), *whole[i + 1 :]]))


def test_arguments_must_be_text_for_one_and_an_object_for_the_other() -> None:
    chat = stream(ChatWriter(ASK))
    at = next(i for i, line in enumerate(chat) if '"arguments":"{' in line)
    broken = changed(chat[at], lambda v: v["choices"][0]["delta"]["tool_calls"][0]["function"].update(arguments={}))
    with pytest.raises(AssertionError):
        check_chat_stream("".join([*chat[:at], broken, *chat[at + 1 :]]))
    lines = stream(LineWriter(ASK, chat=True))
    at = next(i for i, line in enumerate(lines) if "tool_calls" in line)
    broken = changed(lines[at], lambda v: v["message"]["tool_calls"][0]["function"].update(arguments="{}"))
    with pytest.raises(AssertionError):
        check_lines("".join([*lines[:at], broken, *lines[at + 1 :]]), chat=True)
