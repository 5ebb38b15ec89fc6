"""What no model in wgemma's store needs goes, and nothing else."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from full_disk import files_of_at_most
from registry_server import digest
from store_models import made, put
from wgemma.creating import create
from wgemma.files import keeping, naming
from wgemma.files.copying import copy, delete
from wgemma.files.keeping import has_blob, put_blob
from wgemma.files.names import Name
from wgemma.files.naming import undone_on_failure
from wgemma.files.recipes import Recipe
from wgemma.files.stores import Stores


def test_a_manifest_that_cannot_be_read_keeps_all_blobs(stores: Stores) -> None:
    for name in ("one", "two"):
        list(copy("gemma4:tiny", name))
    stores.own.manifest(stores.own.model("two").name).write_bytes(b"{")
    list(delete("one"))
    assert len(list((stores.own.root / "blobs").iterdir())) == 4
    list(delete("two"))
    assert stores.own.names() == []


def test_a_full_disk_can_be_made_room_on(stores: Stores) -> None:
    """No byte can be written, not even into a lock."""
    list(copy("gemma4:tiny", "one"))
    with files_of_at_most(0):
        list(delete("one"))
    assert stores.own.names() == [] and list((stores.own.root / "blobs").iterdir()) == []


def test_a_file_that_is_no_manifest_keeps_no_blobs(stores: Stores) -> None:
    list(copy("gemma4:tiny", "one"))
    (stores.own.manifest(Name.parse("one")).parent / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    list(delete("one"))
    assert list((stores.own.root / "blobs").iterdir()) == []


def test_what_was_left_behind_long_ago_goes_with_the_next_model(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(copy("gemma4:tiny", "one"))
    list(copy("gemma4:tiny", "two"))
    put(stores, b"an upload")
    unfinished = [keeping.partial_place(stores.own, digest(b"x")), keeping.lock_place(stores.own, digest(b"y"))]
    for path in unfinished:
        path.write_bytes(b"12 elsewhere")
    busy = keeping.partial_place(stores.own, digest(b"z"))
    busy.write_bytes(b"half")
    list(delete("one"))
    assert has_blob(stores.own, digest(b"an upload")) and all(path.exists() for path in unfinished)
    monkeypatch.setattr(naming, "FORGOTTEN", -1.0)
    list(copy("two", "one"))
    with keeping.holding(stores.own, digest(b"z")):
        list(delete("one"))
    assert not has_blob(stores.own, digest(b"an upload")) and not any(path.exists() for path in unfinished)
    assert busy.exists()
    stores.own.model("two").verify()


def test_what_a_new_model_needs_is_not_taken_for_left_behind(stores: Stores, tmp_path: Path) -> None:
    """However long ago it came: all that a stopped pull has finished, and files that are here already."""
    list(copy("gemma4:tiny", "one"))
    (tmp_path / "file").write_bytes(b"a file")
    put(stores, b"a file")
    places = [keeping.blob_place(stores.own, digest(b"a file")), stores.own.model("one").model]
    before = [place.stat() for place in places]
    assert [status.st_nlink for status in before] == [1, 2]  # Ollama's store has the second one, too
    while (tmp_path / "file").stat().st_ctime_ns <= before[1].st_ctime_ns:  # until the clock of the disk has ticked
        (tmp_path / "file").write_bytes(b"a file")
    keeping.keep_file(stores.own, tmp_path / "file", set())
    list(copy("one", "two"))
    after = [place.stat() for place in places]
    assert all(new.st_ctime_ns > old.st_ctime_ns for old, new in zip(before, after, strict=True))
    assert after[1].st_mtime_ns == before[1].st_mtime_ns


def test_whoever_waits_for_a_text_holds_up_nobody_else(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may be sending just that text as a blob, slowly."""
    list(copy("gemma4:tiny", "one"))
    waits = threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        time.sleep(seconds)

    monkeypatch.setattr(keeping, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    monkeypatch.setattr(keeping, "PATIENCE", 5.0)
    with keeping.holding(stores.own, digest(b"slow")):
        thread = threading.Thread(target=lambda: list(create("mine", Recipe("one", system="slow"))))
        thread.start()
        assert waits.wait(20)
        list(copy("one", "two"))
    thread.join()
    stores.own.model("mine").verify()


def test_a_store_can_be_listed_while_models_come_and_go(stores: Stores) -> None:
    done, troubles = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            try:
                stores.own.models()
            except Exception as error:
                troubles.append(error)

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        list(copy("gemma4:tiny", "one"))
        list(delete("one"))
    done.set()
    for reader in readers:
        reader.join()
    assert troubles == []


def test_a_model_with_all_the_layers_it_may_have_keeps_only_its_own_blobs(stores: Stores) -> None:
    base = stores.ollama.model("gemma4:tiny")
    made("full", Recipe(base="gemma4:tiny", licenses=[str(i) for i in range(256 - len(base.layers))]))
    made("other", Recipe(base="gemma4:tiny", system="Be brief."))
    count = len(list((stores.own.root / "blobs").iterdir()))
    list(delete("other"))
    assert len(list((stores.own.root / "blobs").iterdir())) == count - 1  # the system turn


def test_a_blob_is_not_deleted_while_another_thread_writes_it(stores: Stores) -> None:
    data = b"x" * 200_000
    stop = threading.Event()

    def fail() -> None:
        while not stop.is_set():
            with suppress(KeyError), undone_on_failure(stores.own) as added:
                added.add(digest(data))
                raise KeyError

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        for _ in range(100):
            put_blob(stores.own, digest(data), [data])
    finally:
        stop.set()
        thread.join()
