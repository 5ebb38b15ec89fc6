"""OpenAI's own client, unmodified."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel, Field

from api_server import TINY, Api

HELLO: Any = [{"role": "user", "content": "What is 2+3?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASKS_WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chats(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=TINY, messages=HELLO)
    assert whole.choices[0].message.content == "2 + 3 = 5"
    stream = client.chat.completions.create(
        model=TINY, messages=HELLO, stream=True, stream_options={"include_usage": True}, n=2
    )
    chunks = list(stream)
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices and not c.choices[0].index) == "2 + 3 = 5"
    )
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


def test_the_helper_for_streams_puts_a_tool_call_together(client: OpenAI) -> None:
    with client.chat.completions.stream(model=TINY, messages=ASKS_WEATHER, tools=[WEATHER]) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls is not None and message.tool_calls[0].function.name == "get_weather"
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    said: Any = message.to_dict()
    answer = client.chat.completions.create(
        model=TINY, messages=[*ASKS_WEATHER, said, result], tools=[WEATHER], max_tokens=8
    )
    assert "sunny" in (answer.choices[0].message.content or "")


def test_many_at_once(api: Api) -> None:
    async def ask() -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:

            async def one(i: int) -> str | None:
                messages: Any = [{"role": "user", "content": f"What is {i}+1?"}]
                return (await client.chat.completions.create(model=TINY, messages=messages)).choices[0].message.content

            return await asyncio.gather(*map(one, range(12)))

    assert asyncio.run(ask())[:3] == ["0 + 1 = 1", "1 + 1 = 2", "2 + 1 = 3"]


def test_responses(client: OpenAI) -> None:
    whole = client.responses.create(model=TINY, input="What is 2+3?", reasoning={"effort": "low"})
    assert whole.output_text == "2 + 3 = 5" and [item.type for item in whole.output] == ["reasoning", "message"]
    with client.responses.stream(model=TINY, input="What is 2+3?") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "2 + 3 = 5"
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    tools: Any = [{"type": "function", **WEATHER["function"]}]
    asked: Any = ASKS_WEATHER
    call = client.responses.create(model=TINY, input=asked, tools=tools).output[0]
    assert call.type == "function_call" and call.name == "get_weather"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    more: Any = [*asked, call, result]
    assert "sunny" in client.responses.create(model=TINY, input=more, tools=tools, max_output_tokens=8).output_text


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=99)


def test_structured_output(client: OpenAI) -> None:
    chat = client.chat.completions.parse(model=TINY, messages=HELLO, response_format=Person)
    assert isinstance(chat.choices[0].message.parsed, Person)
    with client.chat.completions.stream(model=TINY, messages=HELLO, response_format=Person) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Person)
    assert isinstance(client.responses.parse(model=TINY, input="x", text_format=Person).output_parsed, Person)


def test_a_tool_that_must_be_called(client: OpenAI) -> None:
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    answer = client.chat.completions.create(model=TINY, messages=HELLO, tools=[WEATHER], tool_choice=choice)
    assert answer.choices[0].message.tool_calls


def test_media(client: OpenAI, data: Path) -> None:
    picture = base64.b64encode((data / "embedded/colour-and-shape-0.png").read_bytes()).decode()
    parts: Any = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "text", "text": "What do you see?"},
    ]
    messages: Any = [{"role": "user", "content": parts}]
    answer = client.chat.completions.create(model=TINY, messages=messages)
    assert "triangle" in (answer.choices[0].message.content or "")
    with (data / "embedded/transcripts-0.wav").open("rb") as sound:
        assert client.audio.transcriptions.create(model=TINY, file=sound).text == "left right go"
    with (data / "embedded/transcripts-0.wav").open("rb") as sound:
        events = list(client.audio.transcriptions.create(model=TINY, file=sound, stream=True))
    assert events[-1].type == "transcript.text.done"


def test_the_rest(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [TINY]
    assert client.models.retrieve(TINY).id == TINY
    numbers = client.embeddings.create(model=TINY, input=["a cat", "a dog"]).data
    assert len(numbers) == 2 and len(numbers[0].embedding) == 256
    assert client.completions.create(model=TINY, prompt="The cat", max_tokens=2).choices[0].text.startswith(" is")
    assert list(client.completions.create(model=TINY, prompt="The cat", max_tokens=2, stream=True))


def test_errors(client: OpenAI) -> None:
    with pytest.raises(NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(BadRequestError) as wrong:
        client.chat.completions.create(model=TINY, messages=HELLO, temperature=-1)
    assert wrong.value.param == "temperature"
