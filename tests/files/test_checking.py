"""What is not all of a Gemma 4 is never kept; if it is large, it is not even downloaded."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gguf_parts import cut
from gguf_writer import write_gguf
from registry_server import Registry, digest, serving
from wgemma.cli import main
from wgemma.errors import SourceError, StoreError
from wgemma.files import checking, fetching, registry, sources
from wgemma.files.copying import copy
from wgemma.files.gguf import Gguf
from wgemma.files.keeping import put_blob
from wgemma.files.layers import manifest_of
from wgemma.files.manifests import ManifestLayer
from wgemma.files.names import Name
from wgemma.files.naming import keep_manifest
from wgemma.files.stores import Stores
from wgemma.pulling import pull

TENSORS = {f"blk.{i}.attn_norm.weight": ("F32", (200,), bytes([i] * 800)) for i in range(6)}
MODEL = write_gguf({"general.architecture": "gemma4"}, TENSORS)
PARTS = cut(Gguf.open(MODEL), 3)
FOREIGN = cut(Gguf.open(MODEL), 2)[1]
BROKEN: dict[str, tuple[list[bytes], str]] = {
    "one alone": (PARTS[:1], "has 3 parts, and parts 2, 3 are missing"),
    "the last alone": (PARTS[2:], "has 3 parts, and parts 1, 2 are missing"),
    "one is missing": (PARTS[1:], "has 3 parts, and part 1 is missing"),
    "one is doubled": ([*PARTS, PARTS[1]], "are both part 2 of 3"),
    "one is foreign": ([*PARTS[:2], FOREIGN], "they belong to different files"),
    "a whole file twice": ([MODEL, MODEL], "is not a part of a larger file"),
}


@pytest.fixture(autouse=True)
def patience(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetching, registry, sources):
        monkeypatch.setattr(module, "PAUSE", 0.001)


@pytest.fixture
def server() -> Iterator[Registry]:
    with serving() as server:
        yield server


def pulled(server: Registry, *models: bytes) -> str:
    server.add("acme/tiny:x", [("model", data) for data in models])
    name = f"{server.host}/acme/tiny:x"
    assert list(pull(name))[-1] == {"status": "success"}
    return name


def kept(stores: Stores, *models: bytes) -> None:
    """Puts a model into the store as nothing that checks it would."""
    for data in models:
        put_blob(stores.own, digest(data), [data])
    layers = [ManifestLayer("model", digest(data), len(data), None) for data in models]
    config = json.dumps({"model_format": "gguf"}).encode()
    manifest, named = manifest_of(config, layers)
    keep_manifest(stores.own, Name.parse("broken"), manifest, named, [config])


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("case", BROKEN)
def test_parts_that_are_no_model_are_not_kept(
    server: Registry, stores: Stores, case: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LARGE", 1 if large else 1 << 30)
    parts, message = BROKEN[case]
    with pytest.raises(StoreError, match=message) as caught:
        pulled(server, *parts)
    assert caught.value.reason == "bad_manifest"
    assert stores.own.names() == [] and stores.own.root.exists() != large
    assert not list(stores.own.root.rglob("sha256-*"))


def test_what_another_model_needs_stays(server: Registry, stores: Stores) -> None:
    here = pulled(server, *PARTS)
    server.add("acme/other:x", [("model", PARTS[0])])
    with pytest.raises(StoreError, match="parts 2, 3 are missing"):
        list(pull(f"{server.host}/acme/other:x"))
    stores.own.model(here).verify()


def test_a_header_is_not_read_from_where_a_registry_may_not_lead(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LARGE", 1)
    server.add("acme/tiny:x", [("model", MODEL)])
    path = next(path for path in server.blobs if path.endswith(digest(MODEL)))
    for place in ("https://10.0.0.1/x", "https://169.254.169.254/x", "http://93.184.216.34/x", "file:///etc/passwd"):
        server.redirects[path] = place
        with pytest.raises(SourceError, match=r"your own network|by http|not a web address"):
            list(pull(f"{server.host}/acme/tiny:x"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_parts_are_kept_in_any_order(
    server: Registry, stores: Stores, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LARGE", 1)
    model = stores.own.model(pulled(server, *(PARTS[i] for i in order)))
    model.verify()
    with model.open() as gguf:
        assert gguf.parts == 3 and gguf.read("blk.5.attn_norm.weight") == bytes([5] * 800)


@pytest.mark.parametrize("large", [True, False])
def test_a_manifest_that_lies_about_the_architecture_is_refused(
    server: Registry, stores: Stores, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LARGE", 1 if large else 1 << 30)
    with pytest.raises(StoreError, match="'llama'; wgemma runs gemma4 only"):
        pulled(server, write_gguf({"general.architecture": "llama"}, TENSORS))
    assert stores.own.names() == []


def break_ranges(server: Registry) -> None:
    server.ranges = False


def be_busy(server: Registry) -> None:
    server.statuses = [503, 429]


@pytest.mark.parametrize("trouble", [break_ranges, be_busy])
def test_headers_that_cannot_be_read_are_left_to_the_download(
    server: Registry, stores: Stores, trouble: Callable[[Registry], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LARGE", 1)
    trouble(server)
    stores.own.model(pulled(server, *PARTS)).verify()
    with pytest.raises(StoreError, match="parts 2, 3 are missing"):
        pulled(server, PARTS[0])


def test_what_is_here_is_not_asked_for(server: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "LARGE", 1)
    for store in (stores.own, stores.ollama):
        put_blob(store, digest(MODEL), [MODEL])
        pulled(server, MODEL)
        assert not any(digest(MODEL) in path for path, _ in server.asked)
        stores.own.blob(digest(MODEL)).unlink()


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_model_is_told_by_the_commands(stores: Stores, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts, message = BROKEN[case]
    kept(stores, *parts)
    assert main(["verify", "broken"]) == 1
    told = capsys.readouterr().err
    assert message in told and "`wgemma rm broken:latest` deletes the model" in told
    assert main(["show", "broken"]) == 1
    assert main(["cp", "broken", "other"]) == 1
    assert main(["rm", "broken"]) == 0
    assert "Traceback" not in capsys.readouterr().err and stores.own.names() == []


def test_a_model_of_another_family_can_be_copied(stores: Stores) -> None:
    list(copy("llama-mini", "llama"))
    stores.own.model("llama").verify()
