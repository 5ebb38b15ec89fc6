"""Anthropic's addresses."""

from typing import Any

from starlette.routing import Route

from wgemma.serve.anthropic import error, read_message, read_prompt
from wgemma.serve.anthropic_events import MessageWriter
from wgemma.serve.ask import Ask
from wgemma.serve.fields import Fields
from wgemma.serve.routes import answers, record
from wgemma.serve.service import Service
from wgemma.serve.wire import Writer


def anthropic_routes(service: Service) -> list[Route]:
    def writer(ask: Ask, fields: Fields) -> Writer:
        return MessageWriter(ask)

    async def count(fields: Fields) -> dict[str, Any]:
        return {"input_tokens": await service.count(read_prompt(fields))}

    return [
        Route("/v1/messages", answers(service, error, read_message, writer), methods=["POST"]),
        Route("/v1/messages/count_tokens", record(error, count), methods=["POST"]),
    ]
