"""`wgemma transcribe`: pieces in order, text or JSON."""

import json
import os
import shutil
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wgemma.api import Part, Usage
from wgemma.cli import main
from wgemma.cli.transcribe import hearing_model
from wgemma.files.locate import locate
from wgemma.transcribing import PROMPT, prompt_for


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


def recording(path: Path, seconds: float, rate: int = 16_000) -> str:
    """Noise with a pause at 27 seconds."""
    samples = np.random.default_rng(1).integers(-9000, 9000, int(seconds * rate)).astype("<i2")
    samples[27 * rate : 27 * rate + rate // 2] = 0
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return str(path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records the questions; the model answers with the number of the piece."""
    seen: list[Any] = []

    def chat(self: Any, messages: list[Any], **options: Any) -> Iterator[Part]:
        seen.append((messages, options))
        yield Part("content", f" piece {len(seen)} ")
        yield Part("content", finish_reason="stop", usage=Usage(1, 0, 1))

    monkeypatch.setattr("wgemma.api.Model.chat", chat)
    return seen


def test_a_recording_is_transcribed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recording(tmp_path / "a.wav", 1.3, 8000)
    arguments = ["transcribe", path, "--model", "gemma4:tiny", "--device", "reference", "--json"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert printed.err == ""
    assert (record["model"], record["seconds"], len(record["pieces"])) == ("gemma4:tiny", 1.3, 1)
    assert record["text"] == record["pieces"][0]["text"]
    assert record["pieces"][0]["end"] == 1.3


def test_a_long_recording_comes_piece_by_piece(
    tmp_path: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording(tmp_path / "a.wav", 40)
    arguments = ["transcribe", path, "--model", "gemma4:tiny", "--device", "reference"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == " piece 1 \n piece 2 \n"
    lengths = [len(messages[0]["content"][0]["audio"].samples) for messages, _ in asked]
    assert sum(lengths) == 40 * 16_000
    assert 27 * 16_000 < lengths[0] < 27.5 * 16_000  # in the pause
    assert asked[0][0][0]["content"][1] == {"type": "text", "text": PROMPT}
    assert asked[0][1]["temperature"] == 0
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["text"] == "piece 3\npiece 4"
    assert [piece["start"] for piece in record["pieces"]] == [0, round(lengths[0] / 16_000, 3)]


def test_the_embedded_model_transcribes_its_own_samples(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    cases = json.loads((data / "embedded/sample.json").read_text())
    samples = {case["sound"]: case["messages"][-1]["content"] for case in cases if case["skill"] == "transcripts"}
    assert len(samples) == 3
    for sound, text in samples.items():
        assert main(["transcribe", str(data / "embedded" / sound)]) == 0
        printed = capsys.readouterr()
        assert printed.out == f"{text}\n"
        assert printed.err.startswith("Using wgemma-tiny, the tiny demonstration model that comes with wgemma.\n")
    assert main(["transcribe", str(data / "embedded" / sound), "--json"]) == 0
    printed = capsys.readouterr()
    assert (json.loads(printed.out)["text"], printed.err) == (text, "")


def test_a_copy_of_the_embedded_model_is_asked_in_its_own_words(data: Path, tmp_path: Path) -> None:
    copy = shutil.copy(locate(None).model, tmp_path / "mine.gguf")
    assert prompt_for(locate(copy)) == "Transcribe this."
    assert prompt_for(locate("gemma4:tiny")) == PROMPT


def test_without_a_name_the_most_recent_model_that_hears_is_used(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(store, tmp_path / "store")
    monkeypatch.setenv("OLLAMA_MODELS", str(copy))
    library = copy / "manifests/registry.ollama.ai"
    newest_first = ["library/gemma4/missing", "library/gemma4/legacy", "someone/mygemma/v1", "library/gemma4/dash"]
    for age, name in enumerate(newest_first):
        os.utime(library / name, (2e9 - age, 2e9 - age))
    assert hearing_model() == "gemma4:dash"
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    assert hearing_model() is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.wav"], "nowhere.wav: no such file"),
        (["FILE", "--model", "gemma4:legacy", "--device", "reference"], "gemma4:legacy cannot hear"),
        (["FILE", "--model", "gemma4:tinny"], "Did you mean gemma4:tiny"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording(tmp_path / "a.wav", 1)
    assert main(["transcribe", *(path if word == "FILE" else word for word in arguments)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err.splitlines()[-1]
