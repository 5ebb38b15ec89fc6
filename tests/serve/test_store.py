"""Models of the Ollama store, and adapters, on a running server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter_maker import adapter, pair
from api_server import TINY, Api, serving
from event_shapes import LINES, check
from wgemma.files.adapters import write_gguf_adapter
from wgemma.files.gguf import Gguf
from wgemma.files.locate import locate
from wgemma.serve.settings import Settings

STORED = "gemma4:tiny"


@pytest.fixture(scope="module")
def store_api(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with the store of the tests, and an adapter for the embedded model."""
    file = tmp_path_factory.mktemp("adapters") / "loud.gguf"
    with Gguf.open(locate(TINY).model) as gguf:
        columns, rows = gguf.tensors["blk.0.ffn_up.weight"].shape
    write_gguf_adapter(adapter(blk__0__ffn_up=pair(columns, rows, scale=2.0)), file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
        patch.setenv("WGEMMA_MODELS", str(file.parent / "store"))
        with serving(Settings(adapters={"loud": file}, loaded=1)) as api:
            yield api


@pytest.fixture(autouse=True)
def no_store(data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path))


def test_stored_models_are_listed_with_what_the_store_says(store_api: Api, data: Path) -> None:
    listed = {model["name"]: model for model in store_api.ask("/api/tags").json["models"]}
    expected = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    assert TINY in listed and STORED in listed
    assert set(listed) <= {TINY, *expected}
    shown = store_api.ask("/api/show", {"model": STORED}).json
    assert shown["model_info"]["general.architecture"] == "gemma4"
    assert str(data) not in json.dumps(shown)
    adapted = store_api.ask("/api/show", {"model": "someone/mygemma:v1"}).json
    (adapter,) = (line for line in adapted["modelfile"].splitlines() if line.startswith("ADAPTER"))
    assert (data / "ollama-store/blobs" / adapter.partition(" ")[2]).is_file()
    assert [said["role"] for said in adapted["messages"]] == ["user", "assistant"]


def test_one_model_after_the_other(store_api: Api) -> None:
    for model in (TINY, STORED, "gemma4:tiny", TINY):
        body = {"model": model, "prompt": "Hello", "stream": False, "options": {"num_predict": 2}}
        assert check(LINES[False][True], store_api.ask("/api/generate", body).json)["model"] == model
        (running,) = store_api.ask("/api/ps").json["models"]
        assert running["name"] == model


def test_an_adapter_counts_for_the_answers_that_ask_for_it(store_api: Api) -> None:
    def surprise(model: str) -> float:
        body = {"model": model, "prompt": "The old", "raw": True, "stream": False, "logprobs": True}
        answer = check(LINES[False][True], store_api.ask("/api/generate", body).json)
        return sum(token["logprob"] for token in answer["logprobs"])

    plain, changed, again = surprise(TINY), surprise(f"{TINY}+loud"), surprise(TINY)
    assert abs(plain - again) < 1e-3 < abs(plain - changed)
    assert store_api.ask("/api/generate", {"model": f"{TINY}+quiet", "prompt": "x"}).status == 404
