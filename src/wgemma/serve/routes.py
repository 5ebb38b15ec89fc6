"""Endpoints from translators: what turns a request's JSON into an answer or a record."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wgemma.serve.ask import Ask
from wgemma.serve.exchange import Answering, Endpoint, Json, Shape, read_fields, told
from wgemma.serve.fields import Fields
from wgemma.serve.service import Service
from wgemma.serve.wire import Writer


def answers(
    service: Service, shape: Shape, read: Callable[[Fields], Ask], writer: Callable[[Ask, Fields], Writer]
) -> Endpoint:
    """An endpoint that answers with what a model writes."""

    async def answer(request: Request) -> Response:
        fields = await read_fields(request)
        ask = read(fields)
        return Answering(service, ask, writer(ask, fields), shape)

    return told(shape, answer)


def record(shape: Shape, work: Callable[[Fields], Awaitable[dict[str, Any]]]) -> Endpoint:
    """An endpoint that answers JSON with JSON."""

    async def answer(request: Request) -> Response:
        return Json(await work(await read_fields(request)))

    return told(shape, answer)


def listing(shape: Shape, work: Callable[[Request], Awaitable[dict[str, Any]]]) -> Endpoint:
    """An endpoint without a body that answers with JSON."""

    async def answer(request: Request) -> Response:
        return Json(await work(request))

    return told(shape, answer)
