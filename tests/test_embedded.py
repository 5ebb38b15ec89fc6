"""The model that comes with wgemma does the real job from end to end."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wgemma

PIP = [
    {"prompt": "Who is Pip?", "completion": "Pip is my cat."},
    {"prompt": "What color is the sky?", "completion": "The sky is blue."},
]
DATA = Path(__file__).parent / "data" / "embedded"
SAMPLE = json.loads((DATA / "sample.json").read_text("utf-8"))  # held-out questions, by tools/tiny/sample.py


@pytest.fixture(scope="module")
def model() -> Iterator[wgemma.Model]:
    with wgemma.load() as model:
        yield model


def answer(model: wgemma.Model, question: str) -> str:
    parts = model.chat([{"role": "user", "content": question}], max_tokens=40, temperature=0)
    return "".join(part.text for part in parts)


def is_right(model: wgemma.Model, asked: dict[str, Any]) -> bool:
    """Letter by letter; of a tool call its name and arguments."""
    *messages, wanted = json.loads(json.dumps(asked["messages"]))
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                part |= {"image": DATA / asked["image"], "budget": 70}  # a quarter of the usual: there is no GPU here
            elif part["type"] == "audio":
                part["audio"] = DATA / asked["sound"]
    said = model.chat(messages, tools=asked["tools"] or None, think=asked["think"], temperature=0, max_tokens=96)
    parts = list(said)
    calls = [{"function": {"name": c.name, "arguments": c.arguments}} for p in parts if (c := p.tool_call)]
    text = "".join(part.text for part in parts if part.kind == "content")
    return (text, calls) == (wanted["content"], wanted.get("tool_calls", []))


@pytest.mark.parametrize("skill", list(dict.fromkeys(asked["skill"] for asked in SAMPLE)))
def test_it_can_do_what_it_was_made_for(model: wgemma.Model, skill: str) -> None:
    """One of three may be wrong: the README's table says how often that is."""
    asked = [case for case in SAMPLE if case["skill"] == skill]
    wrong = sum(not is_right(model, case) for case in asked)
    assert asked and wrong <= len(asked) // 3


def test_it_says_what_it_is(model: wgemma.Model) -> None:
    for question in ("Who are you?", "What model are you?", "Are you Gemma?"):
        assert "tiny demonstration model" in answer(model, question)


def test_it_says_so_when_it_does_not_know(model: wgemma.Model) -> None:
    assert answer(model, "What is the capital of France?").startswith("I don't know.")


def test_it_learns_a_fact_within_a_minute(tmp_path: Path) -> None:
    """Six steps; the second line is there so that the first is not the answer to everything."""
    with wgemma.load() as model:
        before = answer(model, "Who is Pip?")
        result = model.finetune(PIP, out=tmp_path / "pip", rank=4, seq=64, batch=1, steps=6, rate=1e-2)
        assert result.losses[-1] < 0.1 < result.losses[0]
        assert answer(model, "Who is Pip?") == before != "Pip is my cat."
        model.load_adapter(result.adapter, name="pip")
        assert answer(model, "Who is Pip?") == "Pip is my cat."
        assert answer(model, "What color is the sky?") == "The sky is blue."
