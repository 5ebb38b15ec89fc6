"""What Ray Serve's HTTP proxies run in front of the replicas: tells clients when a replica is lost.

A replica that dies cannot end its streams itself, and Ray just cuts them off. Here they end with the error event of
their API, and a request that had no answer yet gets 503.
"""

from typing import Any

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgemma.serve.exchange import failure
from wgemma.serve.problems import Problem
from wgemma.serve.shapes import shape_for
from wgemma.serve.wire import data, event, line

CALLBACK = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"{__name__}:middlewares"}  # how Ray finds this
LOST = "The worker that answered this request is gone. Ask again."


def middlewares() -> list[Middleware]:
    return [Middleware(TellLost)]


class TellLost:
    """ASGI middleware that completes responses which end too early."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        watched = _Watched(send)
        await self.app(scope, receive, watched)
        if watched.ended:
            return
        problem = Problem(503, LOST, code="worker_lost", retry_after=1)
        if not watched.begun:
            await failure(shape_for(scope["path"]), problem)(scope, receive, send)
            return
        last = ended_by(scope["path"], problem) if watched.streams else ""
        await send({"type": "http.response.body", "body": last.encode(), "more_body": False})


class _Watched:
    """Passes messages on, and remembers how far the response is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.ended = self.streams = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
            self.streams = any(value.startswith((b"text/event-stream", b"application/x-ndjson")) for value in kinds)
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        await self._send(message)


def ended_by(path: str, problem: Problem) -> str:
    """The last event of a stream, in the form of the API at that address."""
    told: Any = shape_for(path)(problem)
    if path.startswith("/v1/messages"):
        return event(told)
    if path.startswith("/v1/responses"):
        return event({**told["error"], "type": "error", "sequence_number": 0})
    return line(told) if path.startswith("/api/") else data(told)
