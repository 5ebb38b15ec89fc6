"""Wrong names and wrong types are found before anything runs, by whoever checks types."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wgemma.engine.sampling import Sampling
from wgemma.options import CALLS, SamplingOptions, TrainingOptions
from wgemma.train.settings import TrainingSettings

ROOT = Path(__file__).resolve().parent.parent
CALLED = ROOT / "tests" / "typed_calls.py"


def test_mypy_finds_what_is_wrong_and_nothing_else() -> None:
    """A few seconds if mypy has checked the package before, as `make test` does."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", str(CALLED)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    found = re.findall(r"typed_calls\.py:(\d+): error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE)
    lines = enumerate(CALLED.read_text("utf-8").splitlines(), 1)
    expected = [(str(i), rule) for i, line in lines if "  # " in line for rule in line.split("  # ")[1].split()]
    assert sorted(found) == sorted(expected), done.stdout + done.stderr


def test_the_options_are_the_fields_of_the_settings_they_become() -> None:
    assert SamplingOptions.__optional_keys__ == set(Sampling.__dataclass_fields__)
    assert TrainingOptions.__optional_keys__ == set(TrainingSettings.__dataclass_fields__)
    assert CALLS["chat"] > CALLS["generate"] > SamplingOptions.__optional_keys__
