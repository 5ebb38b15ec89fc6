"""Ollama's addresses."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from wgemma.serve.ask import Ask, Embed
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.exchange import Answering, Endpoint, Json, read_fields, told
from wgemma.serve.fields import Fields, model_of, named
from wgemma.serve.ollama import LineWriter, error, is_empty, keep_alive_of, read_chat, read_generate
from wgemma.serve.ollama_models import running, show, tags
from wgemma.serve.problems import bad
from wgemma.serve.routes import listing, record
from wgemma.serve.service import Service
from wgemma.version import __version__

VERSION = "0.33.0"  # of the Ollama whose API this is: clients look at it to know what they may ask for


def ollama_routes(service: Service) -> list[Route]:
    async def hello(request: Request) -> Response:
        return PlainTextResponse("Ollama is running")

    async def version(request: Request) -> dict[str, Any]:
        return {"version": VERSION, "wgemma": __version__}  # by which `wgemma ps` knows that this is no Ollama

    async def listed(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(tags, service.models.catalogue)

    async def loaded(request: Request) -> dict[str, Any]:
        return await asyncio.to_thread(running, service.models, service.models.resident())

    async def shown(fields: Fields) -> dict[str, Any]:
        name = named(fields)
        return await asyncio.to_thread(show, service.models.catalogue, name, fields.flag("verbose"))

    async def embed(fields: Fields) -> dict[str, Any]:
        return await _embed(service, fields)

    async def embedding(fields: Fields) -> dict[str, Any]:
        prompt = fields.text("prompt")
        ask = Embed(model_of(fields), [prompt] if prompt else [], keep_alive=keep_alive_of(fields))
        vectors, _, _ = await service.embed(ask)
        return {"embedding": vectors[0].tolist() if prompt else []}

    posts = {
        "/api/show": record(error, shown),
        "/api/chat": _answers(service, read_chat, chat=True),
        "/api/generate": _answers(service, read_generate, chat=False),
        "/api/embed": record(error, embed),
        "/api/embeddings": record(error, embedding),
    }
    return [
        Route("/", hello),
        Route("/api/version", listing(error, version)),
        Route("/api/tags", listing(error, listed)),
        Route("/api/ps", listing(error, loaded)),
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
    ]


def _answers(service: Service, read: Callable[[Fields], Ask], *, chat: bool) -> Endpoint:
    async def answer(request: Request) -> Response:
        ask = read(await read_fields(request))
        writer = LineWriter(ask, chat=chat)
        if is_empty(ask):
            return Json(writer.loaded(await service.load(ask)))
        return Answering(service, ask, writer, error)

    return told(error, answer)


async def _embed(service: Service, fields: Fields) -> dict[str, Any]:
    begun, given = perf_counter(), fields.any("input")
    texts = [given] if isinstance(given, str) else fields.items("input", BOUNDS.texts)
    if not all(isinstance(text, str) for text in texts):
        raise fields.wrong("input", "a string or a list of strings")
    if sum(map(len, texts)) > BOUNDS.prompt:
        raise bad(f"input has more than {BOUNDS.prompt} characters.", "input")
    if texts == [""]:
        texts = []
    if "" in texts:
        raise bad("input has an empty text.", "input")
    dimensions = fields.whole("dimensions", 0, 1 << 20) or None
    ask = Embed(model_of(fields), texts, dimensions, keep_alive_of(fields))
    vectors, count, load_seconds = await service.embed(ask)
    return {
        "model": ask.model,
        "embeddings": vectors.tolist(),
        "total_duration": round(1e9 * (perf_counter() - begun)),
        "load_duration": round(1e9 * load_seconds),
        "prompt_eval_count": count,
    }
