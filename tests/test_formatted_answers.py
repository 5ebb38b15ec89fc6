"""Formats and tools with the model that comes along: whatever it writes, it parses."""

import asyncio
import json
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pytest

import wgemma

ASK = [{"role": "user", "content": "How is the weather in Oslo?"}]


@dataclass
class Day:
    when: date
    sky: Literal["clear", "cloudy"]
    degrees: int | None = None


@pytest.fixture(scope="module")
def model() -> wgemma.Model:
    return wgemma.load(context=512, slots=2)


def weather(city: str, days: Literal[1, 2, 3] = 1) -> dict[str, Any]:
    """Looks up the weather.

    Args:
        city: a town
        days: how many days ahead
    """
    return {"city": city, "days": days, "sky": "clear"}


def wait(minutes: Literal[1, 5]) -> str:
    """Waits for a while."""
    return f"{minutes} minutes have passed"


@pytest.mark.parametrize("think", [False, "low"])
@pytest.mark.parametrize(
    ("format", "kind"),
    [
        (Day, Day),
        (tuple[Day, Day], tuple),
        (Literal["a", "b"], str),
        ({"type": "integer", "minimum": 3, "maximum": 5}, int),
        (wgemma.Regex("[a-c]{3}"), str),
        (wgemma.Choice(["yes", "no"]), str),
        (wgemma.Grammar('root ::= "(" root ")" | "x"'), str),
    ],
    ids=str,
)
def test_an_answer_has_its_format(model: wgemma.Model, format: Any, kind: type, think: Any) -> None:
    answer = model.chat(ASK, format=format, think=think, thinking_budget=4, temperature=1.5, seed=3, max_tokens=200)
    if answer.finish_reason == "stop":
        assert isinstance(answer.parsed, kind)
    else:
        assert answer.parsed is None and answer.finish_reason == "length"


def test_many_answers_and_alternatives_have_it_too(model: wgemma.Model) -> None:
    many = model.chat_many([ASK] * 2, format=Day, temperature=1.5, seed=5).answers
    alternatives = model.chat(ASK, format=Day, temperature=1.5, seed=5, n=2).alternatives
    continued = model.generate_many(["Once", "Then"], format=Day, temperature=1.5, seed=5).answers
    assert all(isinstance(answer.parsed, Day) for answer in [*many, *alternatives, *continued])
    assert isinstance(model.generate("Once", format=Day, seed=5).parsed, Day)


def test_a_limit_or_a_stop_string_cuts_it(model: wgemma.Model) -> None:
    for options in ({"max_tokens": 3}, {"stop": "sky"}):
        answer = model.chat(ASK, format=Day, **options)
        assert answer.parsed is None and answer.text.startswith("{") and "sky" not in answer.text


def test_a_tool_is_called_when_it_is_required_or_named(model: wgemma.Model) -> None:
    for choice, names in (("required", {"weather", "wait"}), ("wait", {"wait"})):
        answer = model.chat(ASK, tools=[weather, wait], tool_choice=choice, temperature=1.5, max_tokens=200)
        assert answer.finish_reason == "tool" and {call.name for call in answer.tool_calls} <= names
        assert answer.parsed is None and all(call.error is None for call in answer.tool_calls)
    none = model.chat(ASK, tools=[weather], tool_choice="none", temperature=0, max_tokens=60)
    assert none.tool_calls == []


def test_a_run_calls_functions_with_what_they_take(model: wgemma.Model) -> None:
    run = model.run_tools(ASK, [weather, wait], tool_choice="required", format=Day, rounds=2, max_tokens=200, seed=1)
    assert run.steps and all(step.error is None for step in run.steps)
    assert [message["role"] for message in run.messages[:3]] == ["user", "assistant", "tool"]
    assert run.finish_reason in ("tool", "length") or isinstance(run.parsed, Day)
    assert json.loads(json.dumps(run.messages)) == run.messages


def test_a_run_in_an_event_loop_does_the_same(model: wgemma.Model) -> None:
    async def later(minutes: Literal[1, 5]) -> str:
        """Waits for a while."""
        await asyncio.sleep(0)
        return f"{minutes} minutes"

    async def run() -> None:
        done = await model.arun_tools(ASK, [later], tool_choice="later", rounds=1, max_tokens=200)
        assert [step.result for step in done.steps] in (["1 minutes"], ["5 minutes"])
        assert done.finish_reason == "tool" and done.messages[-1]["role"] == "tool"

    asyncio.run(run())
