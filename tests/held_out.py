"""What the tiny models are asked in the tests: the sample of tests/data/embedded, by tools/tiny/sample.py."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import wgemma

DATA = Path(__file__).parent / "data" / "embedded"
SAMPLE: list[dict[str, Any]] = json.loads((DATA / "sample.json").read_text("utf-8"))
SKILLS = list(dict.fromkeys(asked["skill"] for asked in SAMPLE))
WORDS_ONLY = list(dict.fromkeys(asked["skill"] for asked in SAMPLE if not {"image", "sound"} & asked.keys()))


def answers_mostly(model: wgemma.Model, skill: str) -> bool:
    """One of three may be wrong: the README's table says how often that is."""
    asked = [case for case in SAMPLE if case["skill"] == skill]
    return sum(not is_right(model, case) for case in asked) <= len(asked) // 3


def answers_one_of_each(model: wgemma.Model, skills: Sequence[str]) -> bool:
    """The shortest question of each skill; one answer may be wrong."""
    asked = [[case for case in SAMPLE if case["skill"] == skill] for skill in skills]
    shortest = [min(cases, key=lambda case: len(json.dumps(case["messages"]))) for cases in asked]
    return sum(not is_right(model, case) for case in shortest) <= 1


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
