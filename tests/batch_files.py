"""Files of requests, and what came of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TINY = "wgemma-tiny"


def chat(custom_id: str, content: str, **body: Any) -> dict[str, Any]:
    """A greedy chat with the embedded model."""
    messages = [{"role": "user", "content": content}]
    asked = {"model": TINY, "messages": messages, "max_tokens": 8, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}


def sums(count: int) -> list[dict[str, Any]]:
    return [chat(f"sum-{i}", f"What is {i % 10}+{i % 7}?") for i in range(count)]


def write(path: Path, rows: Iterable[Any]) -> Path:
    """A row that is a string is written as it is."""
    with path.open("w") as file:
        for row in rows:
            file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
    return path


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def texts(path: Path) -> dict[str, str]:
    """What each chat was answered; all of them have to be there once."""
    found = records(path)
    answers = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in found}
    assert len(answers) == len(found), "a request was answered twice"
    return answers
