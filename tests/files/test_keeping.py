"""What is written into wgemma's store is whole."""

import os
from pathlib import Path

import pytest

from full_disk import files_of_at_most
from registry_server import digest
from store_models import made
from wgemma.errors import Error, StoreError
from wgemma.files import keeping
from wgemma.files.copying import copy
from wgemma.files.keeping import has_blob, put_blob
from wgemma.files.locks import locked
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores


@pytest.mark.parametrize("name", ["sha256:" + "a" * 63, "sha256:../" + "a" * 61, "x", "sha256-" + "a" * 64, ""])
def test_a_blob_needs_a_digest(stores: Stores, name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        put_blob(stores.own, name, [b"x"])
    assert caught.value.reason == "invalid_digest" and not (tmp_path / "own").exists()


def test_a_file_is_kept_with_progress_that_ends(stores: Stores, tmp_path: Path) -> None:
    path, heard = tmp_path / "x", []
    path.write_bytes(b"x" * (3 << 20))
    for _ in range(2):  # the second time it is there
        heard.clear()
        keeping.keep_file(stores.own, path, set(), heard.append)
        assert sum(heard) == 2 * path.stat().st_size


def test_a_blob_must_hash_to_its_name(stores: Stores) -> None:
    with pytest.raises(StoreError, match="is damaged"):
        put_blob(stores.own, digest(b"one"), [b"o", b"n"])
    assert not has_blob(stores.own, digest(b"one")) and list((stores.own.root / "blobs").iterdir()) == []
    put_blob(stores.own, digest(b"one"), [b"o", b"ne"])
    assert has_blob(stores.own, digest(b"one"), 3) and not has_blob(stores.own, digest(b"one"), 4)


@pytest.mark.parametrize("name", ["manifest.partial", "store.lock", "blobs/sha256-{}.partial", "blobs/sha256-{}.lock"])
def test_links_in_the_store_are_replaced_and_not_followed(stores: Stores, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    os.utime(victim, (0, 0))
    link = stores.own.root / name.format(digest(b"Be brief.").removeprefix("sha256:"))
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    made("mine", Recipe(base="gemma4:tiny", system="Be brief."))
    assert victim.read_bytes() == b"mine"


def test_a_folder_that_leads_out_of_the_store_is_refused_before_anything_is_written(
    stores: Stores, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    stores.own.root.mkdir()
    (stores.own.root / "blobs").symlink_to(tmp_path / "disk")
    with pytest.raises(StoreError, match="To keep models on another disk, set WGEMMA_MODELS"):
        list(copy("gemma4:tiny", "mine"))
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_lock_is_named_and_not_waited_for_for_ever(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PATIENCE", 0.1)
    lock = keeping.lock_place(stores.own, digest(b"Be brief."))
    lock.parent.mkdir(parents=True)
    with locked(lock, Error), pytest.raises(StoreError, match=rf"^process \d+ on .* holds {lock}\. Try again when"):
        made("mine", Recipe(base="gemma4:tiny", system="Be brief."))


def test_what_is_in_the_way_is_named_and_full_disks_are_told_apart(stores: Stores) -> None:
    (stores.own.root / "store.lock").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot be written: Is a directory \(.*store\.lock\)\.$"):
        list(copy("gemma4:tiny", "mine"))
    (stores.own.root / "store.lock").rmdir()
    with files_of_at_most(100), pytest.raises(StoreError, match=r"File too large\. Nothing is lost; free some space"):
        made("mine", Recipe(base="gemma4:tiny", system="Be brief. " * 20))
