"""What tests of the stores begin with."""

import shutil
from pathlib import Path

import pytest

from wgemma.files.stores import Stores


@pytest.fixture
def stores(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    """An empty store of wgemma's, and one of Ollama's with a few models."""
    shutil.copytree(data / "ollama-store", tmp_path / "ollama")
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return Stores.find()
