"""Models are copied and deleted in wgemma's store; Ollama's is only read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from registry_server import digest
from store_models import reason
from wgemma.creating import create
from wgemma.embedded import NAME
from wgemma.files.copying import copy, delete
from wgemma.files.events import Work
from wgemma.files.names import Name
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores


def snapshot(folder: Path) -> dict[str, tuple[bytes, float]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime) for path in folder.rglob("*") if path.is_file()}


def test_a_model_of_ollamas_is_copied_and_its_store_stays_as_it_was(stores: Stores, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "ollama")
    list(copy("someone/mygemma:v1", "mine"))
    model = stores.own.model("mine")
    model.verify()
    original = stores.ollama.model("someone/mygemma:v1")
    assert (model.system, model.params, len(model.adapters)) == (original.system, original.params, 1)
    list(copy("mine", "again:x"))
    list(delete("mine"))
    stores.own.model("again:x").verify()
    list(delete("again:x"))
    assert list((tmp_path / "own/blobs").iterdir()) == [] and stores.own.names() == []
    assert snapshot(tmp_path / "ollama") == before


def test_deleting_keeps_what_others_need(stores: Stores) -> None:
    for name in ("one", "two"):
        list(copy("gemma4:tiny", name))
    list(create("three", Recipe(base="one", system="Be brief.")))
    list(delete("one"))
    list(delete("three"))
    stores.own.model("two").verify()
    assert len(list((stores.own.root / "blobs").iterdir())) == len(stores.own.model("two").blobs)


def test_what_wgemma_cannot_run_is_copied_all_the_same(stores: Stores) -> None:
    """A model in another format, and one with settings that are none."""
    list(copy("gemma4:mlx", "other"))
    path = stores.ollama.manifest(Name.parse("someone/mygemma:v1"))
    manifest = json.loads(path.read_bytes())
    (params,) = (layer for layer in manifest["layers"] if layer["mediaType"].endswith(".params"))
    params |= {"digest": digest(b"[]"), "size": 2}
    (stores.ollama.root / "blobs" / digest(b"[]").replace(":", "-")).write_bytes(b"[]")
    path.write_text(json.dumps(manifest))
    list(copy("someone/mygemma:v1", "mine"))
    for name in ("other", "mine"):
        stores.own.model(name).verify()


def test_a_copy_is_of_the_model_that_was_asked_for(stores: Stores) -> None:
    steps = copy("gemma4:tiny", "mine")
    wanted = stores.ollama.model("gemma4:tiny").manifest_bytes
    next(steps)
    shutil.copy(
        stores.ollama.manifest(Name.parse("someone/mygemma:v1")), stores.ollama.manifest(Name.parse("gemma4:tiny"))
    )
    list(steps)
    stores.own.model("mine").verify()
    assert stores.own.model("mine").manifest_bytes == wanted


@pytest.mark.parametrize("work", [copy, lambda source, goal: create(goal, Recipe(source))], ids=["cp", "create"])
def test_a_model_that_is_replaced_meanwhile_is_taken_as_it_is_now(
    work: Callable[[str, str], Work], stores: Stores
) -> None:
    list(create("source", Recipe(NAME, system="one")))
    steps = work("source", "mine")
    next(steps)
    list(create("source", Recipe(NAME, system="two")))  # deletes the text of the former
    assert [*steps][-1] == {"status": "success"}
    assert stores.own.model("mine").system == "two"


def test_a_copy_hides_only_another_model_of_its_name(stores: Stores) -> None:
    for source, name in (("gemma4:tiny", "gemma4:latest"), ("someone/mygemma:v1", "gemma4:tiny"), ("gemma4:tiny", "x")):
        list(copy(source, name))
    hidden = {name: stores.hides(Name.parse(name)) for name in ("gemma4:latest", "gemma4:tiny", "x", "gemma4:dash")}
    assert hidden == {"gemma4:latest": False, "gemma4:tiny": True, "x": False, "gemma4:dash": False}
    theirs = stores.ollama.manifest(Name.parse("gemma4:tiny"))
    theirs.unlink()
    os.mkfifo(theirs)  # reading it would block
    assert not stores.hides(Name.parse("gemma4:tiny"))


def test_only_what_is_ours_is_deleted(stores: Stores) -> None:
    assert reason(delete("gemma4:tiny")) == "not_allowed"
    assert reason(delete("gemma4:nothing")) == "not_found"
    assert reason(delete("../x")) == "invalid_name"
    assert reason(copy("gemma4:tiny", "../x")) == "invalid_name"
    assert reason(copy("gemma4:nothing", "x")) == "not_found"
    assert reason(copy("gemma4:missing", "x")) == "missing_blob"


def test_blobs_that_are_deleted_meanwhile_are_brought_again(stores: Stores) -> None:
    """With the last model that needed them."""
    for work in (copy("gemma4:tiny", "mine"), create("mine", Recipe("gemma4:tiny")), create("mine", Recipe(NAME))):
        list(create("other", Recipe(NAME)))
        list(copy("gemma4:tiny", "another"))
        while next(work)["status"] != "writing manifest":
            pass
        list(delete("other"))
        list(delete("another"))
        assert [*work][-1] == {"status": "success"}
        stores.own.model("mine").verify()
        list(delete("mine"))
