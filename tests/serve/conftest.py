"""One server with the embedded model for all tests of this folder, and servers with models that are made up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api_server import Api, serving


@pytest.fixture(scope="session")
def api(cache: Path, strict: None) -> Iterator[Api]:
    """A server with the embedded model, and no store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OLLAMA_MODELS", str(cache / "no-store"))
        patch.setenv("WGEMMA_MODELS", str(cache / "no-own-store"))
        with serving() as running:
            yield running


@pytest.fixture(autouse=True)
def no_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's own models stay out of it."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own-store"))
