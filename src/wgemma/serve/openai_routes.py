"""OpenAI's addresses."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wgemma.files.locate import ModelFiles
from wgemma.serve.ask import Ask
from wgemma.serve.exchange import told
from wgemma.serve.fields import Fields
from wgemma.serve.openai import ChatWriter, error, includes_usage, read_chat
from wgemma.serve.openai_audio import transcribe
from wgemma.serve.openai_completions import CompletionWriter, read_completion
from wgemma.serve.openai_embeddings import embeddings
from wgemma.serve.openai_events import ResponseWriter
from wgemma.serve.openai_responses import read_response
from wgemma.serve.routes import answers, listing, record
from wgemma.serve.service import Service
from wgemma.serve.wire import Writer

Translator: TypeAlias = tuple[Callable[[Fields], Ask], Callable[[Ask, Fields], Writer]]  # reads, and writes


def _chat_writer(ask: Ask, fields: Fields) -> Writer:
    return ChatWriter(ask, includes_usage(fields))


def _completion_writer(ask: Ask, fields: Fields) -> Writer:
    return CompletionWriter(ask, includes_usage(fields))


EMBEDDINGS = "/v1/embeddings"
ANSWERS: dict[str, Translator] = {
    "/v1/chat/completions": (read_chat, _chat_writer),
    "/v1/completions": (read_completion, _completion_writer),
    "/v1/responses": (read_response, ResponseWriter),
}


def openai_routes(service: Service) -> list[Route]:
    catalogue = service.models.catalogue

    async def models(request: Request) -> dict[str, Any]:
        found = await asyncio.to_thread(catalogue.all)
        return {"object": "list", "data": [_model(files.name, files) for files, _ in found]}

    async def model(request: Request) -> dict[str, Any]:
        name = request.path_params["name"]
        return _model(name, catalogue.find(name).files)

    async def embed(fields: Fields) -> dict[str, Any]:
        return await embeddings(service, fields)

    async def audio(request: Request) -> Response:
        return await transcribe(service, request)

    posts = {
        **{path: answers(service, error, read, writer) for path, (read, writer) in ANSWERS.items()},
        EMBEDDINGS: record(error, embed),
        "/v1/audio/transcriptions": told(error, audio),
    }
    return [
        Route("/v1/models", listing(error, models)),
        Route("/v1/models/{name:path}", listing(error, model)),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
    ]


def _model(name: str, files: ModelFiles) -> dict[str, Any]:
    created = int(files.stored.modified) if files.stored else 0
    return {"id": name, "object": "model", "created": created, "owned_by": "wgemma"}
