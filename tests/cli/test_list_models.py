"""`wgemma list` shows the models in the store."""

import json
import shutil
from pathlib import Path

import pytest

from wgemma.cli import main
from wgemma.cli.list_models import _age


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


def test_the_table_holds_every_listed_model(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text("utf-8"))["models"]
    assert main(["list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED"]
    assert {row.split()[0] for row in rows} == {name for name, fields in expected.items() if fields["listed"]}
    tiny = next(row for row in rows if row.startswith("gemma4:tiny "))
    assert tiny.split()[1:6] == ["8f5b85e891fa", "1.3", "MB", "689K", "Q8_0"]


def test_json_is_for_machines(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text("utf-8"))["models"]
    assert main(["ls", "--json"]) == 0
    for record in json.loads(capsys.readouterr().out):
        fields = expected[record["name"]]
        assert (record["digest"], record["size"]) == (fields["digest"], fields["size"])
        assert record["details"] == fields.get("details", record["details"])


def test_an_empty_store_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert "`ollama pull gemma4:e2b` gets one" in printed.out
    assert "wgemma-tiny (15.5 MB) comes with wgemma" in printed.err
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_hostile_configuration_cannot_speak_to_the_terminal(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(store, tmp_path / "store")
    monkeypatch.setenv("OLLAMA_MODELS", str(copy))
    manifest = copy / "manifests/registry.ollama.ai/library/gemma4/tiny"
    config = json.loads(manifest.read_text())["config"]["digest"].replace(":", "-")
    words = {"model_type": "\x1b]0;owned\x07", "file_type": "a\nb\x9b2J\u202e", "model_families": ["\ud800\x7f"]}
    (copy / "blobs" / config).write_text(json.dumps(words))
    for arguments in (["list"], ["list", "--json"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert not set(printed) & set("\x1b\x07\x9b\x7f\u202e\ud800")
    assert "owned" in printed


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(-5, "just now"), (59, "just now"), (60, "1 minute ago"), (7200, "2 hours ago"), (86400 * 30, "4 weeks ago")],
)
def test_ages_are_rounded_down(seconds: float, words: str) -> None:
    assert _age(seconds) == words
