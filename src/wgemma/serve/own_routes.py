"""The server's own addresses: is it there, what has it done, and text ⇄ tokens."""

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from wgemma.serve import openai
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.exchange import Json
from wgemma.serve.fields import Fields, model_of
from wgemma.serve.problems import bad
from wgemma.serve.routes import record
from wgemma.serve.service import Service


def own_routes(service: Service) -> list[Route]:
    async def health(request: Request) -> Response:
        return Json({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4")

    async def tokenize(fields: Fields) -> dict[str, Any]:
        text = fields.text("content") or fields.text("prompt")
        if len(text) > BOUNDS.prompt:
            raise bad(f"content has {len(text)} characters; the limit is {BOUNDS.prompt}.", "content")
        tokens = await service.encode(model_of(fields), text, fields.flag("parse_special", True))
        return {"tokens": tokens, "count": len(tokens)}

    async def detokenize(fields: Fields) -> dict[str, Any]:
        tokens = fields.items("tokens", BOUNDS.prompt)
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            raise fields.wrong("tokens", "a list of token ids")
        text = await service.decode(model_of(fields), tokens)
        return {"content": text, "prompt": text}

    return [
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/tokenize", record(openai.error, tokenize), methods=["POST"]),
        Route("/detokenize", record(openai.error, detokenize), methods=["POST"]),
    ]
