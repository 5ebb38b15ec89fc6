"""`wgemma list` shows the models in the store."""

import json
import re
import shutil
import struct
from hashlib import sha256
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from wgemma.cli import main
from wgemma.cli.list_models import _age
from wgemma.cli.stored import problem
from wgemma.files.locate import locate
from wgemma.files.manifests import LAYER
from wgemma.files.ollama import Store


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


def test_the_table_holds_every_listed_model(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text("utf-8"))["models"]
    assert main(["list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "PARAMETERS", "QUANTISATION", "MODIFIED", "STORE", "NOTE"]
    assert {row.split()[0] for row in rows} == set(expected)
    damaged = {row.split()[0] for row in rows if "damaged: " in row}
    assert damaged == {name for name, fields in expected.items() if not fields["listed"]}
    tiny = next(row for row in rows if row.startswith("gemma4:tiny "))
    assert tiny.split()[1:6] == ["8f5b85e891fa", "1.3", "MB", "689K", "Q8_0"]


def test_a_tag_may_look_like_a_file(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(store, tmp_path / "store")
    tags = tmp_path / "store/manifests/registry.ollama.ai/library/gemma4"
    shutil.copy(tags / "tiny", tags / "tiny-Q8_0.gguf")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    assert main(["list"]) == 0
    assert "gemma4:tiny-Q8_0.gguf " in capsys.readouterr().out
    assert locate("gemma4:tiny-Q8_0.gguf").stored is not None
    assert main(["verify", "gemma4:tiny-Q8_0.gguf"]) == 0


def test_json_is_for_machines(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text("utf-8"))["models"]
    assert main(["ls", "--json"]) == 0
    for record in json.loads(capsys.readouterr().out):
        fields = expected[record["name"]]
        assert record["damaged"] != fields["listed"]
        if record["damaged"]:
            assert record["digest"] is record["size"] is record["details"] is None and record["problem"]
            continue
        assert (record["digest"], record["size"]) == (fields["digest"], fields["size"])
        assert record["details"] == fields.get("details", record["details"])


def test_what_cannot_run_says_why(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text("utf-8"))["models"]
    assert main(["list", "--json"]) == 0
    problems = {record["name"]: record["problem"] for record in json.loads(capsys.readouterr().out)}
    assert {name for name, why in problems.items() if why is None} == {
        name for name, fields in expected.items() if fields["runnable"]
    }
    assert {name: why for name, why in problems.items() if why} == {
        "gemma4:broken": "its manifest is not JSON: Unterminated string starting at column 109",
        "gemma4:empty": "its manifest is not JSON: Expecting value at column 1",
        "gemma4:hostile": "its manifest names a file by something that is no digest",
        "gemma4:hostile2": "its manifest names a file by something that is no digest",
        "gemma4:missing": "a file of it is missing",
        "gemma4:mlx": "it is stored as 'safetensors'; wgemma reads GGUF only",
        "gemma4:noconfig": "a file of it is missing",
        "gemma4:nomodel": "it has no model file",
        "llama-mini:latest": "its architecture is llama; wgemma runs gemma4 only",
    }
    assert main(["list"]) == 0
    assert "cannot run: it has no model file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (write_gguf({"general.architecture": "llama"}), "the architecture is 'llama'; wgemma runs gemma4 only"),
        (b"GGUF", "at byte 4: the file ends inside the version"),
        (b"", "at byte 0: the file ends inside the magic number"),
        (write_gguf({"general.architecture": "gemma4"}), "the key gemma4.block_count is missing"),
    ],
    ids=["architecture", "cut off", "empty", "keys"],
)
def test_a_header_that_does_not_fit_is_noted(
    content: bytes, words: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Store(shutil.copytree(store, tmp_path / "store"))
    monkeypatch.setenv("OLLAMA_MODELS", str(copy.root))
    model = copy.model("gemma4:tiny")
    model.model.write_bytes(content)
    assert problem(model) == words


@pytest.mark.parametrize(
    ("kind", "content", "words"),
    [
        ("params", b"{", "its params is not JSON: Expecting property name enclosed in double quotes at column 2"),
        ("params", b'{"temperature": 500}', "its temperature is 500; it must be a number from 0 to 100"),
        ("messages", b"{}", "its messages are no list of roles and texts"),
        ("projector", b"GGUF", "its projector is damaged: at byte 4: the file ends inside the version"),
        ("adapter", b"", "its adapter is damaged: at byte 0: the file ends inside the magic number"),
    ],
)
def test_a_model_whose_other_parts_are_damaged_is_noted(
    kind: str, content: bytes, words: str, store: Path, tmp_path: Path
) -> None:
    copy = Store(shutil.copytree(store, tmp_path / "store"))
    path = copy.manifest(copy.model("gemma4:tiny").name)
    manifest = json.loads(path.read_bytes())
    layer = {"mediaType": LAYER + kind, "digest": f"sha256:{sha256(content).hexdigest()}", "size": len(content)}
    others = [other for other in manifest["layers"] if other["mediaType"] != layer["mediaType"]]
    path.write_text(json.dumps(manifest | {"layers": [*others, layer]}))
    (copy.root / "blobs" / layer["digest"].replace(":", "-")).write_bytes(content)
    assert problem(copy.model("gemma4:tiny")) == words


def test_a_tensor_type_wgemma_lacks_is_noted(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Store(shutil.copytree(store, tmp_path / "store"))
    monkeypatch.setenv("OLLAMA_MODELS", str(copy.root))
    model = copy.model("gemma4:tiny")
    data = model.model.read_bytes()
    name = b"blk.0.attn_q.weight"
    kind = data.index(name) + len(name) + 4 + 2 * 8  # after its rank and two dimensions
    model.model.write_bytes(data[:kind] + struct.pack("<I", 16) + data[kind + 4 :])
    told = r"at byte \d+: 'blk.0.attn_q.weight' has type IQ2_XXS, which wgemma cannot read; Q2_K would work"
    assert re.fullmatch(told, str(problem(model)))


@pytest.mark.parametrize("size", [0, 10, None], ids=["empty", "cut off", "missing"])
def test_any_blob_that_is_not_whole_is_noted(
    size: int | None, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Store(shutil.copytree(store, tmp_path / "store"))
    monkeypatch.setenv("OLLAMA_MODELS", str(copy.root))
    layer = next(layer for layer in copy.model("gemma4:tiny").layers if layer.kind == "license")
    blob = copy.blob(layer.digest)
    if size is None:
        blob.unlink()
        told = "a file of it is missing"
    else:
        blob.write_bytes(bytes(size))
        told = f"{blob.name} has {size} bytes, and should have {layer.size}"
    assert problem(copy.model("gemma4:tiny")) == told


def test_a_damaged_model_of_wgemmas_own_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path))
    place = tmp_path / "manifests/registry.ollama.ai/library"
    for name, content in (("text/latest", b"no json"), ("list/latest", b"[]"), ("mine/latest", b"{}"), ("a b/c", b"")):
        (place / name).parent.mkdir(parents=True)
        (place / name).write_bytes(content)
    assert main(["cp", "gemma4:tiny", "mine"]) == 0
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "damaged: its manifest is not " in line and " wgemma " in line] == [
        "list:latest",
        "text:latest",
    ]
    assert main(["verify", "mine"]) == 0
    assert main(["rm", "text", "list"]) == 0
    assert main(["list"]) == 0
    assert "text:latest" not in capsys.readouterr().out.split("Deleted list:latest.")[-1]
    assert [str(name) for name in Store(tmp_path).names()] == ["mine:latest"]


def test_the_family_of_another_model_is_known_without_its_file(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wgemma.files.gguf.Gguf.open", None)  # opens nothing
    assert problem(Store(store).model("llama-mini")) == "its architecture is llama; wgemma runs gemma4 only"


def test_an_empty_store_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert main(["list"]) == 0
    printed = capsys.readouterr()
    assert "`wgemma pull gemma4:e2b` gets one" in printed.out
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
