"""Which address is whose: the table of routes, as an ASGI app."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from wgemma.serve.anthropic_routes import anthropic_routes
from wgemma.serve.exchange import failure
from wgemma.serve.guard import Guard
from wgemma.serve.ollama_routes import ollama_routes
from wgemma.serve.ollama_store import store_routes
from wgemma.serve.openai_routes import openai_routes
from wgemma.serve.own_routes import own_routes
from wgemma.serve.problems import Problem
from wgemma.serve.service import Service
from wgemma.serve.shapes import shape_for

_SAID = {404: "There is nothing at this address.", 405: "This address takes another method."}


def make_app(service: Service) -> ASGIApp:
    """The whole server: `service` behind the guard. Its lifespan ends with the models unloaded."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    routes = [*own_routes(service), *ollama_routes(service), *store_routes(service)]
    routes += [*openai_routes(service), *anthropic_routes(service)]
    app = Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: _unknown})
    return Guard(app, service.settings)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = _SAID.get(error.status_code, "This request cannot be served.")
    return failure(shape_for(request.url.path), Problem(error.status_code, said))
