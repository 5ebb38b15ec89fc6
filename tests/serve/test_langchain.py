"""LangChain's own tests of chat models, with its clients for OpenAI, Anthropic and Ollama."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from api_server import TINY, Api

pytest.importorskip("langchain_tests", reason="LangChain is not installed: pip install -e '.[clients]'")

from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import OutputParserException
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),  # the clients keep connections from test to test
    pytest.mark.filterwarnings("ignore:.*it is not an async function"),
]

# Tests that judge what the model knows. This one is tiny; the call or the JSON that it writes is well formed.
BEYOND_A_TINY_MODEL = {
    "test_tool_calling": "calls the right tool, with the wrong number",
    "test_tool_calling_async": "calls the right tool, with the wrong number",
    "test_tool_choice": "is asked for a place after a mere greeting and repeats itself until the limit cuts the call",
    "test_json_mode": "writes JSON, but not with the keys that the prompt describes",
    "test_unicode_tool_call_integration": "cannot copy Chinese",
}

WRONG = (AssertionError, OutputParserException)  # a request that is refused raises neither


@pytest.fixture(autouse=True)
def beyond_a_tiny_model(request: pytest.FixtureRequest) -> None:
    reason = BEYOND_A_TINY_MODEL.get(request.node.originalname)
    if reason:
        request.node.add_marker(pytest.mark.xfail(reason=f"the tiny model {reason}", raises=WRONG, strict=True))


@pytest.fixture(autouse=True)
def local_media(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    """The pictures that the tests would download are one of ours."""
    picture = (data / "embedded/colour-and-shape-0.png").read_bytes()

    def get(url: str, **_: Any) -> httpx.Response:
        return httpx.Response(200, content=picture, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)


class Suite(ChatModelIntegrationTests):
    """The server is where `params` says."""

    __test__ = False
    params: dict[str, Any]

    @pytest.fixture(autouse=True)
    def server(self, api: Api) -> None:
        type(self).params = self.at(api.url)

    def at(self, url: str) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return self.params

    @property
    def supports_image_inputs(self) -> bool:
        return True


class TestOpenAI(Suite):
    __test__ = True

    def at(self, url: str) -> dict[str, Any]:
        return {"model": TINY, "base_url": f"{url}/v1", "api_key": "none", "max_tokens": 200, "stream_usage": True}

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestAnthropic(Suite):
    __test__ = True

    def at(self, url: str) -> dict[str, Any]:
        return {"model": TINY, "base_url": url, "api_key": "none", "max_retries": 0, "max_tokens": 200}

    @property
    def chat_model_class(self) -> type[ChatAnthropic]:
        return ChatAnthropic


class TestOllama(Suite):
    __test__ = True

    def at(self, url: str) -> dict[str, Any]:
        return {"model": TINY, "base_url": url, "num_predict": 200}

    @property
    def chat_model_class(self) -> type[ChatOllama]:
        return ChatOllama

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return False


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@pytest.mark.parametrize("suite", [TestOpenAI, TestAnthropic])
def test_a_tool_that_must_be_called_is(api: Api, suite: type[Suite]) -> None:
    """What `test_tool_choice` asks for, about things that the tiny model has seen."""
    model = suite().chat_model_class(**suite().at(api.url))
    for choice in ("any", "get_weather"):
        said = model.bind_tools([get_weather, add], tool_choice=choice).invoke("What is the weather in Paris?")
        assert [(call["name"], [*call["args"]]) for call in said.tool_calls] == [("get_weather", ["city"])]
    said = model.bind_tools([get_weather, add], tool_choice="add").invoke("What is 2+3?")
    assert [call["name"] for call in said.tool_calls] == ["add"]
