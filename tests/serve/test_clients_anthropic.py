"""Anthropic's own client, unmodified."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic, BadRequestError, NotFoundError
from pydantic import BaseModel, Field

from api_server import TINY, Api

HELLO: Any = [{"role": "user", "content": "What is 2+3?"}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASKS_WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
THINKS: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[Anthropic]:
    with Anthropic(base_url=api.url, api_key="none", max_retries=0) as client:
        yield client


def test_messages(client: Anthropic) -> None:
    whole = client.messages.create(model=TINY, max_tokens=60, messages=HELLO, thinking=THINKS, system="Be short.")
    assert [block.type for block in whole.content] == ["thinking", "text"]
    with client.messages.stream(model=TINY, max_tokens=60, messages=HELLO, thinking=THINKS) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_message()
    assert {"message_start", "thinking", "signature", "text", "content_block_stop", "message_stop"} <= kinds
    assert message.content[-1].type == "text" and message.content[-1].text == "2 + 3 = 5"
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 10


def test_a_tool_and_its_result(client: Anthropic) -> None:
    with client.messages.stream(model=TINY, max_tokens=60, messages=ASKS_WEATHER, tools=[WEATHER]) as stream:
        message = stream.get_final_message()
    use = message.content[0]
    assert message.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "get_weather"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}
    turns: Any = [
        *ASKS_WEATHER,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(model=TINY, max_tokens=8, messages=turns, tools=[WEATHER]).content[0]
    assert answer.type == "text" and "sunny" in answer.text


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def test_structured_output(client: Anthropic) -> None:
    message = client.messages.parse(model=TINY, max_tokens=99, messages=HELLO, output_format=Person)
    assert isinstance(message.parsed_output, Person)


def test_a_tool_that_must_be_used(client: Anthropic) -> None:
    choice: Any = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    message = client.messages.create(model=TINY, max_tokens=99, messages=HELLO, tools=[WEATHER], tool_choice=choice)
    assert [block.type for block in message.content] == ["tool_use"]


def test_pictures_and_counts(client: Anthropic, data: Path) -> None:
    encoded = base64.b64encode((data / "embedded/colour-and-shape-0.png").read_bytes()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    asked: Any = [
        {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "What do you see?"}]}
    ]
    answer = client.messages.create(model=TINY, max_tokens=60, messages=asked)
    assert answer.content[0].type == "text" and "triangle" in answer.content[0].text
    count = client.messages.count_tokens(model=TINY, messages=asked).input_tokens
    assert count == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_beta_and_async(api: Api, client: Anthropic) -> None:
    assert client.beta.messages.create(model=TINY, max_tokens=9, messages=HELLO, betas=["x-2025-01-01"]).content

    async def ask() -> str:
        async with (
            AsyncAnthropic(base_url=api.url, api_key="none", max_retries=0) as client,
            client.messages.stream(model=TINY, max_tokens=60, messages=HELLO) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == "2 + 3 = 5"


def test_errors(client: Anthropic) -> None:
    with pytest.raises(NotFoundError):
        client.messages.create(model="nope", max_tokens=9, messages=HELLO)
    with pytest.raises(BadRequestError, match="must be base64"):
        source: Any = {"type": "url", "url": "https://a.b/c.png"}
        asked: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        client.messages.create(model=TINY, max_tokens=9, messages=asked)
