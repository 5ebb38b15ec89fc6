"""wgemma's own store is looked at before Ollama's, and both together are one list."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from wgemma import StoreError
from wgemma.cli import main
from wgemma.files.locate import locate
from wgemma.files.stores import Stores, own_store


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> Stores:
    """Both hold gemma4:tiny; only Ollama's holds the others."""
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    manifest = Path("manifests/registry.ollama.ai/library/gemma4/tiny")
    (tmp_path / "own" / manifest).parent.mkdir(parents=True)
    shutil.copy(data / "ollama-store" / manifest, tmp_path / "own" / manifest)
    shutil.copytree(data / "ollama-store/blobs", tmp_path / "own/blobs")
    return Stores.find()


def test_the_own_store_is_looked_at_first(stores: Stores, tmp_path: Path) -> None:
    assert stores.model("gemma4:tiny").store.root == tmp_path / "own"
    assert stores.model("someone/mygemma:v1").store.root == stores.ollama.root
    assert "someone/mygemma:v1" in stores and "gemma4:tiny" in stores and "gemma4:none" not in stores
    model = locate("gemma4:tiny").model
    assert isinstance(model, Path) and model.is_relative_to(tmp_path / "own")


def test_a_name_in_both_is_listed_once(stores: Stores) -> None:
    names = [model.name for model in stores.models()]
    assert names == sorted(set(names)) == [model.name for model in stores.ollama.models()]
    assert len(stores.names()) == len(stores.ollama.names())


def test_the_commands_say_where_a_model_is(stores: Stores, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    places = {record["name"]: record["store"] for record in json.loads(capsys.readouterr().out)}
    assert places["gemma4:tiny"] == str(tmp_path / "own") and places["someone/mygemma:v1"] == str(stores.ollama.root)
    assert main(["list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "wgemma" in next(row for row in rows if row[0] == "gemma4:tiny")
    assert "ollama" in next(row for row in rows if row[0] == "someone/mygemma:v1")
    assert main(["show", "gemma4:tiny"]) == 0
    assert f"store           {tmp_path / 'own'}" in capsys.readouterr().out


def test_what_is_damaged_is_pulled_again_by_its_owner(stores: Stores) -> None:
    blob = stores.own.model("gemma4:tiny").model
    blob.write_bytes(b"GGUF")
    with pytest.raises(StoreError, match="`wgemma pull gemma4:tiny` again, or create it again if it was made here"):
        stores.model("gemma4:tiny").verify()
    blob.unlink()
    with pytest.raises(StoreError, match="`wgemma pull` the model again, or create it again if it was made here"):
        stores.model("gemma4:tiny").open()
    with pytest.raises(StoreError, match="`ollama pull` the model again"):
        stores.model("gemma4:missing").open()


def test_an_unknown_name_suggests_the_nearest(stores: Stores) -> None:
    with pytest.raises(StoreError, match=r"gemma4:tinny is not on this computer\. Did you mean gemma4:tiny"):
        stores.model("gemma4:tinny")
    with pytest.raises(StoreError, match=r"computer\. `wgemma list` shows what is; `wgemma pull z/q:x` gets it"):
        stores.model("z/q:x")


def test_empty_stores_say_how_to_fill_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OLLAMA_MODELS", "WGEMMA_MODELS"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    with pytest.raises(StoreError, match=r"are empty\. `wgemma pull gemma4:e2b` gets it"):
        Stores.find().model("gemma4:e2b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="every system has folders of its own")
def test_where_the_own_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WGEMMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert own_store().root == tmp_path / ".local/share/wgemma/store"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert own_store().root == tmp_path / "data/wgemma/store"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert own_store().root == tmp_path / ".local/share/wgemma/store"


@pytest.mark.parametrize("place", ["ollama", "ollama/mine", "link", "link/mine", "OLLAMA/../ollama"])
@pytest.mark.parametrize("by_default", [False, True])
def test_ollamas_own_store_is_never_wgemmas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str, by_default: bool
) -> None:
    folder = tmp_path / ".ollama/models" if by_default else tmp_path / "ollama"
    (folder / "blobs").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "elsewhere" if by_default else folder))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / place.replace("ollama", str(folder.relative_to(tmp_path)))))
    before = sorted(tmp_path.rglob("*"))
    for words in (["cp", "wgemma-tiny", "mine"], ["list"], ["rm", "mine"], ["serve"], ["app"]):
        assert main(words) == 1
        told = capsys.readouterr().err
        assert "overlaps with Ollama's in " in told and "Set WGEMMA_MODELS to another folder." in told
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["data/models-of-wgemma", "data", "."])
def test_a_folder_beside_or_above_ollamas_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "data/models"))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / place))
    assert Stores.find().own.root == tmp_path / place


@pytest.mark.parametrize("place", ["own/blobs", "own/manifests/x"])
def test_ollamas_store_must_not_lie_among_wgemmas_blobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / place))
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    with pytest.raises(StoreError, match="overlaps"):
        Stores.find()


@pytest.mark.parametrize("variable", ["WGEMMA_MODELS", "OLLAMA_MODELS"])
@pytest.mark.parametrize("place", ["store", "store/manifests", "store/blobs", "."])
@pytest.mark.parametrize("dead", [True, False])
def test_what_is_no_folder_is_no_empty_store(
    variable: str,
    place: str,
    dead: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for other in ("OLLAMA_MODELS", "WGEMMA_MODELS"):
        monkeypatch.setenv(other, str(tmp_path / "none"))
    store = tmp_path / "file/store"
    monkeypatch.setenv(variable, str(store))
    wrong = tmp_path / "file" if place == "." else tmp_path / "file" / place
    wrong.parent.mkdir(parents=True, exist_ok=True)
    if dead:
        wrong.symlink_to("nowhere")
    else:
        wrong.write_text("a file")
    told = f"{wrong} is {'a link to nothing' if dead else 'not a folder'}, so the model store {store} cannot be used"
    for words in (["list"], ["verify", "--all"], ["show", "x"]):
        assert main(words) == 1
        assert told in capsys.readouterr().err
    for words in (["pull", "localhost:9/a/b"], ["cp", "wgemma-tiny", "x"]) if variable == "WGEMMA_MODELS" else ():
        assert main(words) == 1
        printed = capsys.readouterr().err
        assert told in printed and "set WGEMMA_MODELS to another folder" in printed


def test_a_store_that_may_not_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "locked"))
    (tmp_path / "locked/manifests").mkdir(parents=True)

    def refuse(path: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert main(["list"]) == 1
    told = capsys.readouterr().err
    assert f"read the model store {tmp_path / 'locked'}. Set WGEMMA_MODELS to another folder" in told


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_to_itself_where_ollama_has_its_models_by_default_is_no_overlap(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ollama").mkdir()
    (tmp_path / ".ollama/models").symlink_to("models")
    assert "gemma4:tiny" in Stores.find()
