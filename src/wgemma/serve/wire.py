"""How answers travel: JSON, lines of JSON, and server-sent events.

Everything is ASCII: some clients split lines at any character that Unicode calls a line's end.
"""

import json
import secrets
import time
from collections.abc import Iterable
from typing import Any, Protocol

from wgemma.serve.ask import Event, Whole
from wgemma.serve.problems import Problem

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"


class Writer(Protocol):
    """One API's form of one answer. A stream is `begin`, `write` for each event, then `end` or `fail`."""

    media_type: str

    def begin(self) -> Iterable[str]: ...
    def write(self, event: Event) -> Iterable[str]: ...
    def end(self) -> Iterable[str]: ...
    def fail(self, problem: Problem) -> Iterable[str]: ...
    def whole(self, answer: Whole) -> dict[str, Any]: ...


dumps = json.JSONEncoder(separators=(",", ":")).encode


def line(value: Any) -> str:
    return dumps(value) + "\n"


def data(value: Any) -> str:
    """An event without a name."""
    return f"data: {dumps(value)}\n\n"


def event(value: dict[str, Any]) -> str:
    """An event named by its type."""
    return f"event: {value['type']}\ndata: {dumps(value)}\n\n"


def fresh_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    return int(time.time())
