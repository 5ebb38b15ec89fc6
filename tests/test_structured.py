"""Answers that always parse: with random weights, with the embedded model, and with whatever else a call asks for."""

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import wgemma
from bounded_schemas import Maker
from json_checker import valid
from wgemma.gpu.native import NativeDevice

HELLO = [{"role": "user", "content": "Hello"}]
WILD = {"temperature": 1.5, "top_k": 0, "top_p": 1, "max_tokens": 600}


@pytest.fixture(scope="module")
def wild(blob: Path, gpu: NativeDevice) -> Iterator[wgemma.Model]:
    """Random weights."""
    with wgemma.load(blob, device=gpu, slots=8, context=1024) as model:
        yield model


@pytest.fixture(scope="module")
def model() -> Iterator[wgemma.Model]:
    with wgemma.load(context=2048) as model:
        yield model


# -- random weights cannot break it

SIZES = [pytest.param(10, 2, id="few"), pytest.param(200, 5, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("count", "answers"), SIZES)
def test_random_weights_follow_schemas(wild: wgemma.Model, count: int, answers: int) -> None:
    complete = 0
    for seed in range(count):
        schema = Maker(seed).object()
        for answer in wild.chat(HELLO, format=schema, n=answers, seed=seed, **WILD).alternatives:
            if answer.parsed is not None:
                complete += 1
                assert valid(schema, json.loads(answer.text, parse_float=Fraction)), (schema, answer.text)
                assert answer.finish_reason == "stop"
            else:
                assert answer.finish_reason == "length"
    assert complete >= 0.95 * count * answers


@pytest.mark.parametrize(("count", "answers"), SIZES)
def test_random_weights_call_tools_as_declared(wild: wgemma.Model, count: int, answers: int) -> None:
    complete = 0
    for seed in range(count):
        tools = Maker(1000 + seed).tools()
        parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        options = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": seed % 2 == 0}
        for answer in wild.chat(HELLO, n=answers, seed=seed, **options, **WILD).alternatives:
            calls = answer.tool_calls
            if calls and calls[-1].error is None:
                complete += 1
                assert answer.text == ""
                for call in calls:
                    assert valid(parameters[call.name], call.arguments), (parameters[call.name], call)
                assert len(calls) == 1 or options["parallel_tool_calls"]
    assert complete >= 0.95 * count * answers
