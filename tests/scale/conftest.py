"""Ray of the tests' own: its files lie in a folder that goes away, and nothing is written into the home."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose name is short enough for Ray's sockets. Skips where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:  # importing it here would be too early: it reads its settings then
        pytest.skip("Ray is not installed")
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    yield folder
    assert not (folder / ".ray").exists(), "Ray wrote into the home"
    shutil.rmtree(folder, ignore_errors=True)
