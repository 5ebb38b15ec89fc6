"""Pydantic AI, unmodified, by OpenAI's API and by Anthropic's."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from api_server import TINY, Api

pytest.importorskip("pydantic_ai", reason="Pydantic AI is not installed: pip install -e '.[clients]'")

from pydantic_ai import Agent, BinaryContent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = pytest.mark.slow


@pytest.fixture(params=["openai", "anthropic"])
def model(api: Api, request: pytest.FixtureRequest) -> Any:
    if request.param == "openai":
        return OpenAIChatModel(TINY, provider=OpenAIProvider(base_url=f"{api.url}/v1", api_key="none"))
    profile = ModelProfile(supports_json_schema_output=True)
    return AnthropicModel(TINY, provider=AnthropicProvider(base_url=api.url, api_key="none"), profile=profile)


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def test_chat_and_stream(model: Any) -> None:
    async def ask() -> tuple[str, list[str]]:
        agent = Agent(model)
        whole = await agent.run("What is 2+3?")
        async with agent.run_stream("What is 2+3?") as stream:
            return whole.output, [text async for text in stream.stream_text(delta=True, debounce_by=None)]

    whole, pieces = asyncio.run(ask())
    assert whole == "".join(pieces) == "2 + 3 = 5" and len(pieces) > 1


def test_tools(model: Any) -> None:
    asked = []

    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return "sunny"

    agent = Agent(model, tools=[get_weather], model_settings={"max_tokens": 60})
    answer = asyncio.run(agent.run("What is the weather in Paris?"))
    assert len(asked) == 1 and "sunny" in answer.output


def test_structured_output(model: Any) -> None:
    agent = Agent(model, output_type=NativeOutput(Person))
    assert isinstance(asyncio.run(agent.run("What is 2+3?")).output, Person)


def test_pictures(model: Any, data: Path) -> None:
    picture = BinaryContent((data / "embedded/colour-and-shape-0.png").read_bytes(), media_type="image/png")
    assert "triangle" in asyncio.run(Agent(model).run(["What do you see?", picture])).output
