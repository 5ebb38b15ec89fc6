"""The plugin for `llm`, by the real `llm` and the embedded model."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

llm = pytest.importorskip("llm")

from click.testing import CliRunner, Result  # noqa: E402
from llm.cli import cli  # noqa: E402

from wgemma import llm_plugin  # noqa: E402

pytestmark = pytest.mark.slow

TINY = "wgemma/wgemma-tiny"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llm's logs and the stores are the test's own, and no Ollama is asked."""
    (tmp_path / "llm").mkdir()
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own-store"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")


@pytest.fixture(scope="module", autouse=True)
def unloaded_in_the_end() -> Iterator[None]:
    yield
    while llm_plugin._loaded:
        llm_plugin._loaded.popitem()[1].close()


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def said(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line_answers_and_continues() -> None:
    assert said("-m", TINY, "What is 2+3?").strip() == "2 + 3 = 5"
    assert said("-c", "What is 3+4?").strip() == "3 + 4 = 7"
    logs = json.loads(said("logs", "--json", "-n", "0"))
    assert len({log["conversation_id"] for log in logs}) == 1
    assert [log["model"] for log in logs] == [TINY, TINY]


def test_answers_stream_and_count_their_tokens() -> None:
    response = llm.get_model(TINY).prompt("What is 2+3?", system="Be brief.", temperature=0)
    assert len(list(response)) > 1
    assert response.text() == "2 + 3 = 5"
    assert response.usage().input > 10 and response.usage().output > 5


def test_a_conversation_carries_its_history() -> None:
    conversation = llm.get_model(TINY).conversation()
    first = conversation.prompt("What is 2+3?")
    first.text()
    second = conversation.prompt("What is 3+4?")
    assert second.text() == "3 + 4 = 7"
    assert [m["role"] for m in llm_plugin.messages_of(second.prompt)] == ["user", "assistant", "user"]
    assert second.usage().input > first.usage().input


def test_options_reach_the_model() -> None:
    assert said("-m", TINY, "What is 2+3?", "-o", "max_tokens", "1").strip() == "2"
    response = llm.get_model(TINY).prompt("What is 2+3?", think=True)
    thoughts = "".join(event.chunk for event in response.stream_events() if event.type == "reasoning")
    assert "2 + 3" in thoughts and response.text() == "2 + 3 = 5"


def test_schemas_hold() -> None:
    found = json.loads(said("-m", TINY, "What is 2+3?", "--schema", json.dumps(SCHEMA)))
    assert set(found) == {"name", "age"} and 0 <= found["age"] < 100


def test_tools_are_called_and_their_results_told() -> None:
    told: list[Any] = []
    chain = llm.get_model(TINY).chain(
        "What is the weather in Paris?",
        tools=[get_weather],
        options={"max_tokens": 40},
        after_call=lambda tool, call, result: told.append((call.name, call.arguments, result.output)),
    )
    assert "sunny" in chain.text()
    name, arguments, result = told[0]
    assert name == "get_weather" and result == f"sunny in {arguments['city']}"


def test_pictures_are_seen(data: Path) -> None:
    picture = str(data / "embedded/colour-and-shape-0.png")
    assert "triangle" in said("-m", TINY, "What do you see?", "-a", picture)


def test_async_models_answer() -> None:
    async def ask() -> list[str]:
        model = llm.get_async_model(TINY)
        return await asyncio.gather(*(model.prompt(f"What is {i}+1?").text() for i in (1, 2)))

    assert asyncio.run(ask()) == ["1 + 1 = 2", "2 + 1 = 3"]


def test_texts_become_vectors() -> None:
    vector = json.loads(said("embed", "-m", TINY, "-c", "a cat"))
    assert len(vector) == 256 and sum(x * x for x in vector) == pytest.approx(1, abs=1e-3)
    vectors = list(llm.get_embedding_model(TINY).embed_multi(["a cat", "a dog"]))
    assert len(vectors) == 2 and vectors[0] == pytest.approx(vector, abs=1e-2)


def test_a_model_is_loaded_once() -> None:
    assert llm_plugin.loaded("wgemma-tiny") is llm_plugin.loaded("wgemma-tiny")


def test_errors_are_sentences() -> None:
    result = call("-m", TINY, "What is 2+3?", "-o", "temperature", "-1")
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.output.startswith("Error: temperature") and "Traceback" not in result.output
    with pytest.raises(llm.ModelError, match="temperature"):
        llm.get_model(TINY).prompt("Hello", temperature=-1).text()
    with pytest.raises(llm.ModelError, match="empty"):
        llm.get_embedding_model(TINY).embed("")


def test_stored_models_are_listed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    assert "wgemma/gemma4:tiny" in said("models") and TINY in said("models")


def test_an_unreadable_store_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "file"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "file"))
    assert TINY in said("models")
