"""Which address is whose: the table of routes, as an ASGI app."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from wgemma.serve import openai
from wgemma.serve.ask import Ask
from wgemma.serve.exchange import Answering, Endpoint, Json, Shape, failure, read_fields, told
from wgemma.serve.fields import Fields
from wgemma.serve.guard import Guard
from wgemma.serve.openai_audio import transcribe
from wgemma.serve.openai_completions import CompletionWriter, read_completion
from wgemma.serve.openai_embeddings import embeddings
from wgemma.serve.openai_events import ResponseWriter
from wgemma.serve.openai_responses import read_response
from wgemma.serve.problems import Problem
from wgemma.serve.service import Service
from wgemma.serve.shapes import shape_for
from wgemma.serve.wire import Writer, now


def make_app(service: Service) -> ASGIApp:
    """The whole server: `service` behind the guard."""
    routes = [*_own_routes(service), *_openai_routes(service)]

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        said = {404: "There is nothing at this address.", 405: "This address takes another method."}
        problem = Problem(error.status_code, said.get(error.status_code, "This request cannot be served."))
        return failure(shape_for(request.url.path, request.headers), problem)

    app = Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: unknown})
    return Guard(app, service.settings)


def _answers(
    service: Service, shape: Shape, read: Callable[[Fields], Ask], writer: Callable[[Ask, Fields], Writer]
) -> Endpoint:
    """An endpoint that answers with what a model writes."""

    async def answer(request: Request) -> Response:
        fields = await read_fields(request)
        ask = read(fields)
        return Answering(service, ask, writer(ask, fields), shape)

    return told(shape, answer)


def _simple(shape: Shape, work: Callable[[Fields], Awaitable[dict[str, Any]]]) -> Endpoint:
    """An endpoint that answers JSON with JSON."""

    async def answer(request: Request) -> Response:
        return Json(await work(await read_fields(request)))

    return told(shape, answer)


def _own_routes(service: Service) -> list[Route]:
    async def health(request: Request) -> Response:
        return Json({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4")

    async def tokenize(fields: Fields) -> dict[str, Any]:
        model, text = fields.needed("model"), fields.text("content") or fields.text("prompt")
        return {"tokens": await service.encode(model, text, fields.flag("parse_special", True))}

    async def detokenize(fields: Fields) -> dict[str, Any]:
        tokens = fields.items("tokens", 1 << 20)
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            raise fields.wrong("tokens", "a list of token ids")
        return {"content": await service.decode(fields.needed("model"), tokens)}

    return [
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/tokenize", _simple(openai.error, tokenize), methods=["POST"]),
        Route("/detokenize", _simple(openai.error, detokenize), methods=["POST"]),
    ]


def _openai_routes(service: Service) -> list[Route]:
    def record(name: str, created: int) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "wgemma"}

    async def models(request: Request) -> Response:
        found = [record(files.name, _modified(files)) for files, _ in service.models.catalogue.all()]
        return Json({"object": "list", "data": found})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        return Json(record(name, _modified(service.models.catalogue.find(name).files)))

    def chat_writer(ask: Ask, fields: Fields) -> Writer:
        return openai.ChatWriter(ask, openai.includes_usage(fields))

    def completion_writer(ask: Ask, fields: Fields) -> Writer:
        return CompletionWriter(ask, openai.includes_usage(fields))

    async def embed(fields: Fields) -> dict[str, Any]:
        return await embeddings(service, fields)

    async def audio(request: Request) -> Response:
        return await transcribe(service, request)

    chat = _answers(service, openai.error, openai.read_chat, chat_writer)
    completions = _answers(service, openai.error, read_completion, completion_writer)
    responses = _answers(service, openai.error, read_response, ResponseWriter)
    return [
        Route("/v1/models", told(openai.error, models)),
        Route("/v1/models/{name:path}", told(openai.error, model)),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/responses", responses, methods=["POST"]),
        Route("/v1/embeddings", _simple(openai.error, embed), methods=["POST"]),
        Route("/v1/audio/transcriptions", told(openai.error, audio), methods=["POST"]),
    ]


def _modified(files: Any) -> int:
    return int(files.stored.modified) if files.stored else now()
