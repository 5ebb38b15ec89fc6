"""Ollama's own client, unmodified."""

import asyncio
from pathlib import Path

import pytest
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel, Field

from api_server import TINY, Api

HELLO = [{"role": "user", "content": "What is 2+3?"}]
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(api: Api) -> Client:
    return Client(host=api.url)


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: The city.
    """
    return f"sunny in {city}"


def test_chats(client: Client) -> None:
    assert client.chat(TINY, HELLO).message.content == "2 + 3 = 5"
    parts = list(client.chat(TINY, HELLO, stream=True, think=True))
    assert "".join(part.message.content or "" for part in parts) == "2 + 3 = 5"
    assert "2 + 3" in "".join(part.message.thinking or "" for part in parts)
    assert parts[-1].done and parts[-1].done_reason == "stop" and (parts[-1].eval_count or 0) > 5


def test_tools_from_functions(client: Client) -> None:
    message = client.chat(TINY, ASKS_WEATHER, tools=[get_weather]).message
    assert message.tool_calls is not None and message.tool_calls[0].function.name == "get_weather"
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    more = client.chat(TINY, [*ASKS_WEATHER, message, result], tools=[get_weather], options={"num_predict": 8})
    assert "sunny" in (more.message.content or "")


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def test_structured_output(client: Client) -> None:
    message = client.chat(TINY, HELLO, format=Person.model_json_schema()).message
    assert Person.model_validate_json(message.content or "").age < 100


def test_generate_and_media(client: Client, data: Path) -> None:
    assert "5" in client.generate(TINY, "What is 2+3?").response
    assert len(list(client.generate(TINY, "What is 2+3?", stream=True, options={"num_predict": 3}))) > 1
    image = data / "embedded/colour-and-shape-0.png"
    assert "triangle" in client.generate(TINY, "What do you see?", images=[image]).response


def test_many_at_once(api: Api) -> None:
    async def ask() -> list[str | None]:
        client = AsyncClient(host=api.url)

        async def one(i: int) -> str | None:
            return (await client.chat(TINY, [{"role": "user", "content": f"What is {i}+1?"}])).message.content

        return await asyncio.gather(*map(one, range(12)))

    assert asyncio.run(ask())[:3] == ["0 + 1 = 1", "1 + 1 = 2", "2 + 1 = 3"]


def test_embeddings(client: Client) -> None:
    assert len(client.embed(TINY, ["a cat", "a dog"]).embeddings) == 2
    assert len(client.embeddings(TINY, "a cat").embedding) == 256


def test_lists(client: Client) -> None:
    assert [model.model for model in client.list().models] == [TINY]
    client.generate(TINY, keep_alive="1h")
    assert [model.name for model in client.ps().models] == [TINY]
    assert "vision" in (client.show(TINY).capabilities or [])


def test_errors(client: Client) -> None:
    with pytest.raises(ResponseError, match="model 'nope' not found") as missing:
        client.chat("nope", HELLO)
    assert missing.value.status_code == 404
