"""`wgemma verify` finds damage."""

import shutil
from pathlib import Path

import pytest

from wgemma.cli import main
from wgemma.files.ollama import Store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> Store:
    copy = shutil.copytree(data / "ollama-store", tmp_path / "store")
    monkeypatch.setenv("OLLAMA_MODELS", str(copy))
    return Store(copy)


def test_a_whole_model_is_whole(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "gemma4:tiny"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "gemma4:tiny is intact: 4 blobs, 1.3 MB.\n"
    assert printed.err.endswith("hashing gemma4:tiny: 100 %\n")


def test_damage_is_told_with_what_to_do(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    path = store.model("gemma4:tiny").model
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert main(["verify", "gemma4:tiny"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith(f"wgemma: {path.name} is damaged: its bytes hash to ")
    assert message.endswith("Delete it and `ollama pull gemma4:tiny` again.")


@pytest.mark.parametrize("arguments", [[], ["wgemma-tiny"]], ids=["default", "by name"])
def test_the_embedded_model_is_checked_against_its_own_checksum(
    arguments: list[str], store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 0
    assert capsys.readouterr().out == "wgemma-tiny is intact: 15.5 MB.\n"


def test_a_damaged_embedded_model_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("wgemma.embedded._FILE", tmp_path / "tiny.gguf")
    assert main(["verify"]) == 1
    assert "tiny.gguf is damaged: its bytes hash to " in capsys.readouterr().err


def test_a_missing_blob_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "gemma4:missing"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("wgemma: gemma4:missing: the blob sha256-")
    assert "is missing. `ollama pull` the model again." in message


def test_a_model_without_its_file_is_not_intact(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "gemma4:nomodel"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        "wgemma: gemma4:nomodel has no model layer. `ollama pull gemma4:nomodel` again.\n",
    )


def test_an_unknown_name_suggests_the_nearest(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "gema4:tiny"]) == 1
    assert "Did you mean gemma4:tiny" in capsys.readouterr().err


def test_all_models_are_checked_whatever_is_wrong_with_some(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    assert main(["verify", "--all"]) == 1
    printed = capsys.readouterr()
    assert "wgemma-tiny is intact" in printed.out
    assert "gemma4:tiny is intact: 4 blobs" in printed.out and "gemma4:latest is intact: 4 blobs" in printed.out
    for told in (
        "The manifest of gemma4:broken is not JSON",
        "gemma4:hostile: 'sha256:../../etc/passwd' is not a digest",
        "gemma4:missing: the blob sha256-",
        "gemma4:nomodel has no model layer",
    ):
        assert told in printed.err
    assert printed.err.endswith("wgemma: 7 of 17 models are damaged.\n")
    assert main(["verify", "--all", "gemma4:tiny"]) == 1


def test_all_others_are_checked_if_the_embedded_model_is_damaged(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("wgemma.embedded._FILE", tmp_path / "tiny.gguf")
    assert main(["verify", "--all"]) == 1
    printed = capsys.readouterr()
    assert "gemma4:tiny is intact" in printed.out and "tiny.gguf is damaged" in printed.err
    assert printed.err.endswith("wgemma: 8 of 17 models are damaged.\n")
    monkeypatch.setattr("wgemma.embedded._FILE", tmp_path / "none.gguf")
    assert main(["verify", "--all"]) == 1
    printed = capsys.readouterr()
    assert "gemma4:tiny is intact" in printed.out
    assert printed.err.endswith("wgemma: 7 of 16 models are damaged.\n")


def test_all_models_may_be_intact(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    assert main(["cp", "gemma4:tiny", "mine"]) == 0
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    assert main(["verify", "--all"]) == 0
    assert "mine:latest is intact" in capsys.readouterr().out


def test_a_blob_that_models_share_is_hashed_once(store: Store) -> None:
    intact: set[Path] = set()
    for name in ("gemma4:tiny", "gemma4:latest"):
        read: list[int] = []
        model = store.model(name)
        model.verify(lambda layer, amount, read=read: read.append(amount), intact)  # type: ignore[misc]
        assert sum(read) == model.size
    model.model.write_bytes(b"")
    model.verify(intact=intact)
