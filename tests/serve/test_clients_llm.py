"""Simon Willison's `llm` with its plugin for Ollama, both unmodified."""

import asyncio
import json
from pathlib import Path

import pytest

llm = pytest.importorskip("llm")
pytest.importorskip("llm_ollama")

from click.testing import CliRunner  # noqa: E402
from llm.cli import cli  # noqa: E402

from api_server import TINY as NAME  # noqa: E402
from api_server import Api  # noqa: E402

pytestmark = pytest.mark.slow

TINY = f"ollama/{NAME}"
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
}


@pytest.fixture(autouse=True)
def at_our_server(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", api.url)
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


def said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_lists_and_chats() -> None:
    assert TINY in said("models")
    assert said("-m", TINY, "What is 2+3?").strip() == "2 + 3 = 5"
    assert said("-c", "What is 3+4?").strip() == "3 + 4 = 7"


def test_streams() -> None:
    response = llm.get_model(TINY).prompt("What is 2+3?", system="Be brief.")
    assert len(list(response)) > 1 and response.text() == "2 + 3 = 5"
    assert response.usage().output > 5


def test_async() -> None:
    async def ask() -> str:
        text: str = await llm.get_async_model(TINY).prompt("What is 2+3?").text()
        return text

    assert asyncio.run(ask()) == "2 + 3 = 5"


def test_schemas() -> None:
    assert json.loads(said("-m", TINY, "What is 2+3?", "--schema", json.dumps(SCHEMA)))["age"] < 100


def test_tools() -> None:
    called: list[str] = []
    chain = llm.get_model(TINY).chain(
        "What is the weather in Paris?",
        tools=[get_weather],
        options={"num_predict": 40},
        after_call=lambda tool, call, result: called.append(call.name),
    )
    assert "sunny" in chain.text() and called == ["get_weather"]


def test_pictures(data: Path) -> None:
    assert "triangle" in said("-m", TINY, "What do you see?", "-a", str(data / "embedded/colour-and-shape-0.png"))
