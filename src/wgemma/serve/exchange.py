"""One request's life: its body is read, its answer is sent in one piece or as a stream, and all work ends when the
client leaves."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wgemma.serve.ask import Ask, Whole
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.fields import Fields, parse
from wgemma.serve.problems import Problem, bad, problem_of
from wgemma.serve.service import Service
from wgemma.serve.wire import Writer, dumps

Shape: TypeAlias = Callable[[Problem], Mapping[str, Any]]  # an API's JSON for an error
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

JSON = "application/json"


class Json(Response):
    media_type = JSON

    def render(self, content: Any) -> bytes:
        return dumps(content).encode()


async def read_body(request: Request) -> bytes:
    """The whole body, up to the limit; what is longer is refused as soon as that is known."""
    size = 0
    pieces = []
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > BOUNDS.body:
                raise Problem(413, f"The body is larger than {BOUNDS.body >> 20} MiB.", code="request_too_large")
            pieces.append(piece)
    except ClientDisconnect:
        raise bad("The client left before its request was complete.") from None
    return b"".join(pieces)


async def read_fields(request: Request) -> Fields:
    """The JSON object in the body. Media types of files and forms are refused; others are up to the guard. Some of
    Ollama's clients call their JSON an octet-stream, as aiohttp calls all bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    bare = kind == "application/octet-stream" and not request.url.path.startswith("/api/")
    if kind.startswith("multipart/") or bare:
        raise Problem(415, "This address takes JSON: send it with Content-Type: application/json.")
    return parse(await read_body(request))


def told(shape: Shape, endpoint: Endpoint) -> Endpoint:
    """The endpoint, whose errors are in its API's JSON."""

    async def tell(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            return failure(shape, problem_of(error))

    return tell


def failure(shape: Shape, problem: Problem) -> Response:
    return Json(shape(problem), problem.status, problem.headers)


async def whole_answer(service: Service, ask: Ask, writer: Writer) -> dict[str, Any]:
    """An answer in one piece, in its API's JSON."""
    answer = Whole()
    async with aclosing(service.answer(ask)) as events:
        async for event in events:
            answer.add(event)
    return writer.whole(answer)


class Answering(Response):
    """An answer as it is generated."""

    def __init__(self, service: Service, ask: Ask, writer: Writer, shape: Shape) -> None:
        self.service = service
        self.ask = ask
        self.writer = writer
        self.shape = shape
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._stream(scope, receive, send) if self.ask.stream else self._whole(scope, send))

    async def _whole(self, scope: Scope, send: Send) -> None:
        try:
            response: Response = Json(await whole_answer(self.service, self.ask, self.writer))
        except Exception as error:
            response = failure(self.shape, problem_of(error))
        await response(scope, _nothing, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming = Streaming(send, self.writer.media_type)
        try:
            async with aclosing(self.service.answer(self.ask)) as events:
                async for event in events:
                    head = () if streaming.begun else self.writer.begin()
                    await streaming.send([*head, *self.writer.write(event)])
            await streaming.send(self.writer.end())
        except Exception as error:
            problem = problem_of(error)
            if not streaming.begun:
                await failure(self.shape, problem)(scope, receive, send)
                return
            await streaming.send(self.writer.fail(problem))
        await streaming.end()


class Streaming:
    """A response in pieces. Its head is sent with the first of them, so that errors before it can have a status."""

    def __init__(self, send: Send, media_type: str) -> None:
        self.begun = False
        self._send = send
        self._media_type = media_type

    async def send(self, lines: Iterable[str]) -> None:
        if not self.begun:
            self.begun = True
            headers = {
                "content-type": f"{self._media_type}; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",  # proxies shall pass pieces on at once
            }
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        body = "".join(lines).encode()
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _nothing() -> Any:
    return {"type": "http.request"}


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does the work, and cancels it when the client disconnects."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (task, gone):
            if not one.done():
                one.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        with suppress(asyncio.CancelledError):
            await task


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
