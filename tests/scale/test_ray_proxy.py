"""Responses that end too early are completed in the form of their API."""

import asyncio
import json
from typing import Any

import pytest

from event_shapes import OPENAI_ERROR, check
from wgemma.scale.ray_proxy import TellLost


def answer(path: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """What a client gets of an app that sends these messages and then ends."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    asyncio.run(TellLost(app)({"type": "http", "path": path, "method": "POST"}, receive, send))
    return sent


def start(kind: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


def body(text: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text, "more_body": more}


def test_a_whole_response_passes_unchanged() -> None:
    messages = [start(b"text/event-stream"), body(b"a", more=True), body(b"", more=False)]
    assert answer("/v1/chat/completions", *messages) == messages


def test_a_request_without_an_answer_gets_503() -> None:
    first, second = answer("/v1/chat/completions")
    assert first["status"] == 503 and (b"retry-after", b"1") in first["headers"]
    assert check(OPENAI_ERROR, json.loads(second["body"]))["error"]["code"] == "worker_lost"


@pytest.mark.parametrize(
    ("path", "kind", "form"),
    [
        ("/v1/chat/completions", b"text/event-stream; charset=utf-8", 'data: {"error":{"message":'),
        ("/v1/responses", b"text/event-stream; charset=utf-8", 'event: error\ndata: {"message":'),
        ("/v1/messages", b"text/event-stream; charset=utf-8", 'event: error\ndata: {"type":"error",'),
        ("/api/chat", b"application/x-ndjson; charset=utf-8", '{"error":"The worker'),
    ],
)
def test_a_stream_that_is_cut_ends_with_an_error_event(path: str, kind: bytes, form: str) -> None:
    *_, last = answer(path, start(kind), body(b"a", more=True))
    assert last["body"].decode().startswith(form) and last["body"].endswith(b"\n")
    assert not last["more_body"]


def test_a_whole_answer_that_is_cut_gets_nothing_that_would_spoil_it() -> None:
    *_, last = answer("/v1/chat/completions", start(b"application/json"), body(b"{", more=True))
    assert last == body(b"", more=False)
