"""`run_tools` calls functions until there is an answer, and shows every step."""

import asyncio
import gc
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

import wgemma
from wgemma.engine.endings import Ending
from wgemma.gpu.native import NativeDevice

HELLO = [{"role": "user", "content": "Hello"}]
USAGE = wgemma.Usage(9, 0, 5)
Said = str | wgemma.ToolCall


class Script:
    """A model that says what a test wants it to: each reply is a list of texts and calls."""

    name = "script"

    def __init__(self, *replies: Sequence[Said], complete: bool = True) -> None:
        self.replies = list(replies)
        self.complete = complete
        self.prompts: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.closed = 0

    def _chat(self, call: str, **options: Any) -> Callable[..., list[AsyncGenerator[Any, None]]]:
        def begin(conversation: Any, messages: Any) -> list[AsyncGenerator[Any, None]]:
            self.prompts.append(wgemma.render(messages, tools=options["tools"]))
            self.options.append(options)
            return [self._reply(self.replies.pop(0), options.get("cancel"))]

        return begin

    async def _reply(self, said: Sequence[Said], cancel: Any) -> AsyncGenerator[Any, None]:
        called = False
        try:
            for item in said:
                if isinstance(item, str):
                    yield wgemma.Part("content", item)
                else:
                    called = True
                    yield wgemma.Part("tool_call", tool_call=item)
        finally:
            self.closed += 1
        cancelled = cancel is not None and cancel.is_set()
        reason: Any = "tool" if called else "cancelled" if cancelled else "stop"
        yield Ending(reason, USAGE, complete=self.complete, parse=str.upper if reason == "stop" else None)
        yield wgemma.Part("content", finish_reason=reason, usage=USAGE)


def conversation(script: Script) -> wgemma.Conversation:
    return wgemma.Conversation(cast(Any, script))


def call(name: str, /, **arguments: Any) -> wgemma.ToolCall:
    return wgemma.ToolCall(name, arguments)


@dataclass
class Place:
    city: str


def weather(place: Place, days: int = 1) -> dict[str, Any]:
    """Tells the weather."""
    if place.city == "Atlantis":
        raise LookupError("it is under water")
    return {"city": place.city, "days": days}


def wait() -> str:
    """Waits."""
    return "waited"


ROME = call("weather", place={"city": "Rome"}, days=2)


def test_functions_are_called_until_there_is_an_answer() -> None:
    script = Script(["Let me look.", ROME], [call("wait")], ["It is ", "sunny."])
    run = conversation(script).run_tools(HELLO, [weather, wait], temperature=0)
    items = list(run)
    shown = [(item.kind, item.text) for item in items]
    last = ("content", "")
    assert shown == [
        *[("content", "Let me look."), ("tool_call", ""), last, ("tool_result", "")],
        *[("tool_call", ""), last, ("tool_result", "")],
        *[("content", "It is "), ("content", "sunny."), last],
    ]
    assert (run.text, run.finish_reason, run.usage, run.parsed) == ("It is sunny.", "stop", USAGE, "IT IS SUNNY.")
    assert run.tool_calls == [] and run.message == {"role": "assistant", "content": "It is sunny."}
    first, second = run.steps
    assert (first.name, first.arguments, first.result) == ("weather", ROME.arguments, {"city": "Rome", "days": 2})
    assert first.error is None and first.seconds >= 0 and second.result == "waited"
    assert script.options[0]["temperature"] == 0
    calls = [{"function": {"name": "weather", "arguments": {"place": {"city": "Rome"}, "days": 2}}}]
    assert run.messages == [
        *HELLO,
        {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
        {"role": "tool", "name": "weather", "content": '{"city": "Rome", "days": 2}'},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "wait", "arguments": {}}}]},
        {"role": "tool", "name": "wait", "content": "waited"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    assert json.loads(json.dumps(run.messages)) == run.messages and HELLO == [{"role": "user", "content": "Hello"}]
    assert 'response:wait{value:<|"|>waited<|"|>}' in script.prompts[2]


def test_the_answer_can_be_asked_for_at_once() -> None:
    run = conversation(Script([ROME], ["Sun."])).run_tools(HELLO, [weather])
    assert str(run) == "Sun." and list(run) == [] and len(run.steps) == 1
    assert "finish_reason stop" in repr(run) and repr(run).startswith("<wgemma.ToolRun")


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call("weather", place={"city": "Atlantis"}), "LookupError: it is under water"),
        (call("weather", place={"city": 5}), "place.city is 5; it must be a string."),
        (call("weather", days=1), "weather needs the argument place."),
        (call("weather", town="Rome"), "weather has no argument 'town'; it has place, days."),
        (call("wether"), "there is no tool named wether; there are weather, odd"),
        (wgemma.ToolCall("", error="no name", raw="call:{"), "no name"),
        (call("odd"), "TypeError: keys must be str, int, float, bool or None, not tuple"),
    ],
    ids=str,
)
def test_what_goes_wrong_is_told_to_the_model_and_visible(made: wgemma.ToolCall, error: str) -> None:
    def odd() -> Any:
        return {(1, 2): 3}

    script = Script([made, ROME], ["Sorry."])
    run = conversation(script).run_tools(HELLO, [weather, odd])
    assert run.text == "Sorry."
    wrong, right = run.steps
    assert (wrong.error, wrong.result, right.error) == (error, None, None)
    results = [json.loads(message["content"]) for message in run.messages if message["role"] == "tool"]
    assert results == [{"error": error}, {"city": "Rome", "days": 2}]
    assert ("<|tool_call>call:{<tool_call|>" in script.prompts[1]) == (made.error is not None)


def test_several_calls_run_in_order() -> None:
    order = []

    def note(number: int) -> int:
        order.append(number)
        return number

    run = conversation(Script([call("note", number=1), call("note", number=2)], ["Done."])).run_tools(HELLO, [note])
    kinds = [item.kind for item in run]
    assert order == [1, 2] == [step.result for step in run.steps] and kinds.count("tool_result") == 2


def test_a_step_is_visible_before_the_next_call_is_made() -> None:
    order = []

    def note(number: int) -> None:
        order.append(number)

    run = conversation(Script([call("note", number=1), call("note", number=2)], ["Done."])).run_tools(HELLO, [note])
    for item in run:
        if item.kind == "tool_result":
            break
    assert order == [1]
    run.close()
    assert order == [1] and run.finish_reason == "cancelled"


def test_when_the_rounds_run_out_the_calls_have_been_made() -> None:
    script = Script([ROME], [ROME], ["Never said."])
    run = conversation(script).run_tools(HELLO, [weather], rounds=2)
    assert (run.finish_reason, run.text, len(run.steps)) == ("tool", "", 2)
    assert run.messages[-1]["role"] == "tool" and len(script.replies) == 1
    again = conversation(script).run_tools(run.messages, [weather])
    assert again.text == "Never said."


def test_a_call_that_was_cut_off_is_not_made() -> None:
    script = Script([ROME, call("weather", place={"city": "Ro"})], ["Sun."], complete=False)
    run = conversation(script).run_tools(HELLO, [weather])
    whole, cut = run.steps
    assert whole.error is None and cut.error == "the reply was cut off before the call was complete"


def test_a_required_call_is_required_once() -> None:
    for choice, later in (("required", None), ("weather", None), ("none", "none"), (None, None)):
        script = Script([ROME], ["Sun."])
        assert conversation(script).run_tools(HELLO, [weather], tool_choice=choice).text == "Sun."
        assert [options["tool_choice"] for options in script.options] == [choice, later]


def test_cancelling_ends_a_run_between_calls() -> None:
    cancel = threading.Event()

    def stop() -> str:
        cancel.set()
        return "stopped"

    script = Script([call("stop"), ROME], ["Never said."])
    run = conversation(script).run_tools(HELLO, [stop, weather], cancel=cancel)
    assert run.finish_reason == "cancelled" and len(script.replies) == 1
    assert [step.error for step in run.steps] == [None, "the run was cancelled"]
    assert run.messages[-1] == {"role": "tool", "name": "weather", "content": '{"error": "the run was cancelled"}'}


def test_dropping_or_closing_a_run_closes_its_reply() -> None:
    script = Script(["One", "two"], ["One", "two"])
    with conversation(script).run_tools(HELLO, [weather]) as run:
        next(run)
    assert script.closed == 1 and (run.text, run.finish_reason) == ("One", "cancelled")
    run = conversation(script).run_tools(HELLO, [weather])
    next(run)
    del run
    gc.collect()
    assert script.closed == 2


async def slow(name: str, others: list[str], met: asyncio.Event) -> str:
    others.append(name)
    if len(others) == 2:
        met.set()
    await met.wait()
    return name


def test_async_functions_of_one_reply_run_together() -> None:
    async def run_both() -> None:
        met, others = asyncio.Event(), list[str]()

        async def meet(name: str) -> str:
            """Returns when both are here."""
            return await asyncio.wait_for(slow(name, others, met), 10)

        async def fail() -> None:
            raise ValueError

        calls = [call("meet", name="a"), call("wait"), call("meet", name="b"), call("fail")]
        run = conversation(Script(calls, ["Met."])).arun_tools(HELLO, [meet, wait, fail])
        with pytest.raises(wgemma.SessionError, match="not complete"):
            print(run.messages)
        items = [item async for item in run]
        assert [item.result for item in items if isinstance(item, wgemma.ToolStep)] == ["a", "waited", "b", None]
        assert run.text == "Met." and run.steps[3].error == "ValueError"
        whole = await conversation(Script([ROME], ["Sun."])).arun_tools(HELLO, [weather])
        assert whole.text == "Sun." and len(whole.messages) == 4

    asyncio.run(run_both())


@pytest.mark.parametrize("way", ["event", "aclose"])
def test_cancelling_ends_a_function_that_is_awaited(way: str) -> None:
    async def run_one() -> None:
        begun, ended, cancel = asyncio.Event(), list[str](), asyncio.Event()

        async def forever() -> None:
            """Never returns."""
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("ended")

        run = conversation(Script([call("forever")])).arun_tools(HELLO, [forever], cancel=cancel)
        reading = asyncio.ensure_future(run._complete())
        await begun.wait()
        if way == "event":
            cancel.set()
            await reading
            assert run.finish_reason == "cancelled" and run.steps[0].error == "the run was cancelled"
        else:
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await run.aclose()
        assert ended == ["ended"]

    asyncio.run(run_one())


async def later() -> str:
    return "later"


def starts() -> Any:
    """Looks plain, but returns a coroutine."""
    return later()


def test_plain_runs_do_not_await() -> None:
    with pytest.raises(wgemma.SettingsError, match="the tool later is async: write await model"):
        conversation(Script()).run_tools(HELLO, [later])
    run = conversation(Script([call("starts")], ["Oh."])).run_tools(HELLO, [starts])
    assert run.steps[0].error == "starts is async, which needs arun_tools()"
    with pytest.raises(TypeError, match=re.escape("await model.arun_tools(…)")):
        run.__await__()  # type: ignore[attr-defined]


def test_a_function_may_ask_the_model_itself() -> None:
    def ask() -> str:
        return conversation(Script(["Inner."])).run_tools(HELLO, [weather]).text

    assert conversation(Script([call("ask")], ["Outer."])).run_tools(HELLO, [ask]).steps[0].result == "Inner."


# -- a real model


@pytest.fixture(scope="module")
def model(blob: str, gpu: NativeDevice) -> wgemma.Model:
    return wgemma.load(blob, device=gpu)


def test_a_run_without_calls_is_a_chat(model: wgemma.Model) -> None:
    options: Any = {"max_tokens": 6, "temperature": 0}
    run = model.run_tools(HELLO, [weather], tool_choice="none", **options)
    answer = model.chat(HELLO, tools=[weather], tool_choice="none", **options)
    assert run.text == answer.text and run.finish_reason == "length" and run.messages == [*HELLO, answer.message]
    assert asyncio.run(_awaited(model, options)) == answer.text


async def _awaited(model: wgemma.Model, options: Any) -> str:
    return (await model.arun_tools(HELLO, [weather], tool_choice="none", **options)).text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rounds": 0}, "rounds is 0; it must be a whole number of at least 1."),
        ({"n": 2}, "n is an option of chat() and generate(), not of run_tools()."),
        ({"max_turns": 3}, "max_turns is rounds here."),
        ({"tools": [{"type": "function"}]}, "which cannot be called: run_tools() takes functions."),
        ({"tool_choice": "nothing"}, "there is no such tool"),
        ({"format": "yaml"}, "format is 'yaml'"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "Hello"}, "messages must be a list"),
    ],
    ids=str,
)
def test_wrong_calls_are_refused_at_once(model: wgemma.Model, arguments: dict[str, Any], words: str) -> None:
    for call in (model.run_tools, model.arun_tools):
        with pytest.raises(wgemma.Error, match=re.escape(words)):
            cast(Any, call)(**{"messages": HELLO, "tools": [weather], **arguments})
