"""What `chat` and `generate` return: a stream, and the whole answer."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import wgemma
from wgemma.engine.backend import GpuBackend
from wgemma.engine.endings import Ending
from wgemma.gpu.native import NativeDevice

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"max_tokens": 6, "temperature": 0}
CALL = wgemma.ToolCall("weather", {"city": "Oslo", "days": 3})
BROKEN = wgemma.ToolCall("", error="no name", raw='call:{<|"|>')
USAGE = wgemma.Usage(9, 0, 5)


@pytest.fixture(scope="module")
def model(blob: str, gpu: NativeDevice) -> wgemma.Model:
    return wgemma.load(blob, device=gpu)


async def scripted() -> AsyncGenerator[wgemma.Part | Ending, None]:
    """A reply that thinks, speaks and calls, as `Model.chat` streams it."""
    yield wgemma.Part("thinking", "Rain")
    yield wgemma.Part("thinking", "?")
    yield wgemma.Part("content", "Let me *look*.")
    yield wgemma.Part("tool_call", tool_call=CALL)
    yield wgemma.Part("tool_call", tool_call=BROKEN)
    yield Ending("tool", USAGE)
    yield wgemma.Part("content", finish_reason="tool", usage=USAGE)


def test_an_answer_is_a_stream_and_the_whole_of_it(model: wgemma.Model) -> None:
    parts = list(model.chat(HELLO, **GREEDY))
    answer = model.chat(HELLO, **GREEDY)
    assert answer.text == str(answer) == "".join(part.text for part in parts)
    assert answer.finish_reason == parts[-1].finish_reason == "length"
    assert answer.usage is not None and answer.usage.generated == 6
    assert answer.thinking == "" and answer.tool_calls == []


def test_what_was_iterated_over_is_part_of_the_text_and_comes_only_once(model: wgemma.Model) -> None:
    whole = model.chat(HELLO, **GREEDY).text
    answer = model.chat(HELLO, **GREEDY)
    first = next(answer)
    assert answer.text == whole and whole.startswith(first.text)
    assert list(answer) == []


def test_a_continued_text_is_an_answer_too(model: wgemma.Model) -> None:
    answer = model.generate("Once upon", **GREEDY)
    pieces = list(answer)
    assert len(pieces) == 6 and answer.text == "".join(piece.text for piece in pieces)
    assert answer.finish_reason == "length" and answer.usage is not None
    assert (answer.usage.generated, answer.usage.prompt) == (6, 1 + len(model.tokenizer.encode("Once upon")))
    again = model.generate("Once upon", **GREEDY)
    assert again.usage is not None and again.usage.reused == again.usage.prompt - 1
    stopped = model.generate("Once upon", stop=answer.text[-1], **GREEDY)
    assert stopped.finish_reason == "stop" and stopped.text == answer.text[: answer.text.index(answer.text[-1])]


def test_thinking_text_and_calls_are_told_apart() -> None:
    answer = wgemma.Answer(scripted())
    assert (answer.thinking, answer.text) == ("Rain?", "Let me *look*.")
    assert answer.tool_calls == [CALL, BROKEN]
    assert (answer.finish_reason, answer.usage) == ("tool", USAGE)
    assert answer._repr_markdown_() == "Let me *look*."


def test_an_answer_goes_back_into_the_chat_as_it_is() -> None:
    answer = wgemma.Answer(scripted())
    written = '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
    assert json.loads(json.dumps(answer.message)) == answer.message
    assert f"Rain?\n<channel|>{written}Let me *look*." in wgemma.render([*HELLO, answer.message])
    calls = {"role": "assistant", "tool_calls": answer.tool_calls}
    broken = '<|tool_call>call:{<|"|><tool_call|>'
    results = [{"role": "tool", "content": "sun"}, {"role": "tool", "content": "what?"}]
    text = wgemma.render([*HELLO, calls, *results])
    assert written + broken in text
    assert 'response:weather{value:<|"|>sun' in text and 'response:unknown{value:<|"|>what?' in text


def test_closing_cancels_and_leaves_what_had_arrived(model: wgemma.Model) -> None:
    with model.chat(HELLO, temperature=0) as answer:
        first = next(answer)
    assert (answer.text, answer.finish_reason, answer.usage) == (first.text, "cancelled", None)
    assert list(answer) == []
    model.reset()  # nothing is running
    answer.close()


def test_dropping_an_answer_cancels_it(model: wgemma.Model) -> None:
    never = dict.fromkeys(model.tokenizer.stop_ids, -100)
    answer = model.generate("Once", temperature=0, logit_bias=never)
    next(answer)
    assert isinstance(model.backend, GpuBackend)
    batch, pages = model.backend.batch, model.backend.runner.paging.pages
    assert batch.seats.jobs
    del answer
    gc.collect()
    model.reset()
    assert not batch.seats.jobs
    assert [kind.held for kind in pages.values()] == [0, 0]


def test_a_complete_answer_is_not_cancelled_by_closing_it(model: wgemma.Model) -> None:
    with model.chat(HELLO, **GREEDY) as answer:
        assert answer.text
    assert answer.finish_reason == "length"


def test_an_answer_shows_itself_without_being_read(model: wgemma.Model) -> None:
    answer = model.chat(HELLO, **GREEDY)
    assert repr(answer) == "<wgemma.Answer, 0 parts: not complete yet; .text is all of it>"
    assert answer.text and "finish_reason length" in repr(answer)


def test_an_async_answer_is_awaited_or_iterated_over(model: wgemma.Model) -> None:
    async def both() -> None:
        whole = await model.achat(HELLO, **GREEDY)
        assert whole.text == model.chat(HELLO, **GREEDY).text and whole.finish_reason == "length"
        answer = model.agenerate("Once", **GREEDY)
        with pytest.raises(wgemma.SessionError, match="await model"):
            print(answer.text)
        pieces = [piece async for piece in answer]
        assert answer.text == "".join(piece.text for piece in pieces) and answer.usage is not None
        assert (await answer).text == answer.text
        async with model.achat(HELLO, temperature=0) as left:
            first = await anext(left)
        assert (left.text, left.finish_reason, left.usage) == (first.text, "cancelled", None)
        model.reset()

    asyncio.run(both())


def test_an_error_ends_the_answer_and_keeps_what_came_before_it() -> None:
    async def failing() -> AsyncGenerator[wgemma.Part | Ending, None]:
        yield wgemma.Part("content", "so far")
        raise wgemma.DeviceLost("gone")

    answer = wgemma.Answer(failing())
    with pytest.raises(wgemma.DeviceLost):
        print(answer.text)
    answer.close()  # as a `with` block does
    assert (answer.text, answer.finish_reason, answer.usage) == ("so far", None, None)


def test_an_async_answer_that_nobody_awaited_shows_itself_in_a_notebook(model: wgemma.Model) -> None:
    assert "not complete yet" in model.achat(HELLO, **GREEDY)._repr_markdown_()


def test_other_ways_to_read_an_answer_say_what_to_type(model: wgemma.Model) -> None:
    async def awaited() -> None:
        await model.chat(HELLO, **GREEDY)  # type: ignore[misc]

    with pytest.raises(wgemma.SettingsError, match=r"await model\.achat"):
        asyncio.run(awaited())
    with pytest.raises(wgemma.SettingsError, match=r"answer\.text"):
        model.chat(HELLO, **GREEDY)["message"]  # type: ignore[index]
    with pytest.raises(wgemma.SettingsError, match="async for"):
        list(model.achat(HELLO, **GREEDY))  # type: ignore[call-overload]


async def spoken(text: str, ending: Ending) -> AsyncGenerator[wgemma.Part | Ending, None]:
    yield wgemma.Part("thinking", "Hm.")
    yield wgemma.Part("content", text[:5])
    yield wgemma.Part("content", text[5:])
    yield ending
    yield wgemma.Part("content", finish_reason=ending.finish_reason, usage=USAGE)


def test_a_complete_answer_is_parsed_once() -> None:
    answer = wgemma.Answer(spoken('{"a": [1]}', Ending("stop", USAGE, complete=True, parse=json.loads)))
    assert answer.parsed == {"a": [1]} and answer.parsed is answer.parsed
    cut = wgemma.Answer(spoken('{"a": [1]', Ending("length", USAGE)))
    assert cut.parsed is None and cut.finish_reason == "length"
    several = wgemma.Answer(*(spoken(text, Ending("stop", USAGE, parse=json.loads)) for text in ("[1]", "null", "[3]")))
    assert [each.parsed for each in several.alternatives] == [[1], None, [3]]


def test_an_async_answer_is_parsed_when_it_is_complete() -> None:
    async def read() -> None:
        answer = wgemma.AsyncAnswer(spoken("[1]", Ending("stop", USAGE, parse=json.loads)))
        with pytest.raises(wgemma.SessionError, match="await"):
            print(answer.parsed)
        assert (await answer).parsed == [1]

    asyncio.run(read())


def test_the_last_part_names_the_stop_string(model: wgemma.Model) -> None:
    *parts, last = model.chat(HELLO, temperature=0, max_tokens=8)
    assert last.stop is None
    text = "".join(part.text for part in parts)
    *_, last = model.chat(HELLO, temperature=0, max_tokens=8, stop=["no such text", text[2:4]])
    assert (last.finish_reason, last.stop) == ("stop", text[2:4])


ANYTHING = wgemma.Regex(r"[\s\S]*")


def test_only_what_the_model_ended_itself_is_parsed(model: wgemma.Model) -> None:
    whole = model.chat(HELLO, format=ANYTHING, temperature=0)
    assert whole.finish_reason == "stop" and whole.parsed == whole.text != ""
    assert model.chat(HELLO, temperature=0).parsed is None  # no format
    cut = model.chat(HELLO, format=ANYTHING, temperature=0, max_tokens=2)
    assert (cut.finish_reason, cut.parsed) == ("length", None)
    stopped = model.chat(HELLO, format=ANYTHING, temperature=0, stop=whole.text[3:5])
    assert (stopped.finish_reason, stopped.parsed) == ("stop", None)
    many = model.chat_many([HELLO, HELLO], format=ANYTHING, temperature=0).answers
    assert [each.parsed for each in many] == [whole.text] * 2


def test_a_continued_text_has_a_format_too(model: wgemma.Model) -> None:
    ends = dict.fromkeys(model.tokenizer.stop_ids, 100)
    ended = model.generate("Once", format=wgemma.Choice(["", "a"]), logit_bias=ends)
    assert (ended.finish_reason, ended.parsed) == ("stop", "")
    assert model.generate("Once", format=ANYTHING, **GREEDY).parsed is None
    assert [each.parsed for each in model.generate_many(["Once"], format=ANYTHING, **GREEDY).answers] == [None]


def weather(city: str) -> str:
    """Tells the weather."""
    return city


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "yaml"}, "format is 'yaml'"),
        ({"format": {"type": "json_object"}}, 'format="json"'),
        ({"format": bytes}, "bytes has no JSON schema"),
        ({"tools": weather}, "write a list, as in tools="),
        ({"tools": [len]}, "len cannot be a tool"),
        ({"tool_choice": "required"}, "tool_choice is 'required', but there are no tools"),
        ({"tool_choice": "weather"}, "but there are no tools"),
        ({"tools": [weather], "tool_choice": "wether"}, "there is no such tool, only"),
        ({"tools": [weather], "tool_choice": "any"}, 'it must be "auto", "none", "required" or the name'),
        ({"tools": [weather], "tool_choice": {"type": "function"}}, "or the name of a tool"),
        ({"parallel_tool_calls": 1}, "it must be True or False"),
    ],
    ids=lambda given: given if isinstance(given, str) else " and ".join(given),
)
def test_wrong_formats_and_tools_are_refused_at_once(model: wgemma.Model, options: dict[str, Any], words: str) -> None:
    for call in (model.chat, model.achat):
        with pytest.raises(wgemma.Error, match=words):
            call(HELLO, **options)
    with pytest.raises(wgemma.Error, match=words):
        model.chat_many([HELLO], **options)


def test_functions_are_declared_like_descriptions(model: wgemma.Model) -> None:
    described = [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "Tells the weather.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        }
    ]
    one = model.chat(HELLO, tools=[weather], tool_choice="none", max_tokens=1)
    other = model.chat(HELLO, tools=described, tool_choice="auto", max_tokens=1)
    assert one.usage and other.usage and one.usage.prompt == other.usage.prompt == other.usage.reused + 1
