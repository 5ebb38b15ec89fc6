"""A pull brings exactly what was announced, whatever the server does, or nothing; and it goes on where it ended."""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from registry_server import CONFIG, TINY, Registry, digest, serving
from wgemma.errors import Error, SourceError, StoreError
from wgemma.files import fetching, keeping, registry, waiting, web
from wgemma.files.copying import delete
from wgemma.files.keeping import blob_place, has_blob, partial_place, put_blob
from wgemma.files.stores import Stores
from wgemma.files.web import Manners, Pace
from wgemma.pulling import pull

BIG = Random(1).randbytes(200_000)
LAYERS = [("model", TINY), ("projector", BIG), ("license", b"words " * 500)]
NAME = "acme/tiny:x"


@pytest.fixture
def hub() -> Iterator[Registry]:
    with serving() as server:
        server.add(NAME, LAYERS)
        yield server


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    for module in (fetching, registry):
        monkeypatch.setattr(module, "PAUSE", 0.001)
    return Stores.find()


def pulled(server: Registry, name: str = NAME, **how: Any) -> list[dict[str, Any]]:
    return list(pull(f"{server.host}/{name}", **how))


def check(stores: Stores, server: Registry, name: str = NAME) -> None:
    """The model is in the store, whole."""
    model = stores.own.model(f"{server.host}/{name}")
    model.verify()
    assert model.projectors[0].read_bytes() == BIG


def left(stores: Stores) -> set[str]:
    """What is in the store besides complete blobs and manifests."""
    whole = re.compile(r"blobs(/sha256-[0-9a-f]{64})?|manifests.*")
    names = {str(path.relative_to(stores.own.root)) for path in stores.own.root.rglob("*")}
    return {name for name in names if not whole.fullmatch(name)}


def test_a_model_is_pulled_with_ollamas_words(hub: Registry, stores: Stores) -> None:
    events = pulled(hub)
    check(stores, hub)
    statuses = [event["status"] for event in events]
    assert statuses[0] == "pulling manifest"
    assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    last = {event["digest"]: event for event in events if "digest" in event}
    assert {event["total"] for event in last.values()} >= {len(data) for _, data in LAYERS}
    assert all(event["completed"] == event["total"] for event in last.values())
    assert f"pulling {digest(BIG)[7:19]}" in statuses
    assert left(stores) == set()


def test_a_second_pull_asks_for_no_blob(hub: Registry, stores: Stores) -> None:
    pulled(hub)
    hub.asked.clear()
    assert pulled(hub)[-1] == {"status": "success"}
    assert [path for path, _ in hub.asked if not path.endswith(digest_of_config())] == []


def digest_of_config() -> str:
    import json

    return digest(json.dumps(CONFIG).encode())


def test_cut_connections_are_resumed_where_they_broke(hub: Registry, stores: Stores) -> None:
    hub.cuts = [1000, 0, 70_000, 0, 0, 13]
    pulled(hub)
    check(stores, hub)
    starts = [int(span[6:].partition("-")[0]) for path, span in hub.asked if path.endswith(digest(BIG)) and span]
    assert starts == sorted(starts) and len(starts) > 2


def test_a_busy_server_is_asked_again_and_a_dead_one_is_given_up(hub: Registry, stores: Stores) -> None:
    hub.statuses = [503, 429]
    pulled(hub)
    check(stores, hub)
    hub.add("acme/tiny:y", [*LAYERS, ("adapter", BIG[1:])])
    hub.cuts = [50_000, *[0] * 50]
    with pytest.raises(SourceError, match=r"no data after 6 tries .*goes on where it stopped"):
        pulled(hub, "acme/tiny:y")
    assert "y" not in [name.tag for name in stores.own.names()]
    assert partial_place(stores.own, digest(BIG[1:])).stat().st_size == 50_000
    hub.cuts.clear()
    pulled(hub, "acme/tiny:y")
    assert hub.asked[-1][1] == f"bytes=50000-{len(BIG) - 2}"


def test_a_server_without_ranges_starts_over(hub: Registry, stores: Stores) -> None:
    hub.ranges = False
    hub.cuts = [1000]
    pulled(hub)
    check(stores, hub)


def test_redirects_within_loopback_are_followed(hub: Registry, stores: Stores) -> None:
    for path in list(hub.blobs):
        hub.redirects[path] = f"http://{hub.host}/far{path}"
        hub.blobs[f"/far{path}"] = hub.blobs.pop(path)
    pulled(hub)
    check(stores, hub)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("https://10.0.0.1/x", "an address in your own network"),
        ("https://169.254.169.254/latest/meta-data", "an address in your own network"),
        ("https://[fd00::1]/x", "an address in your own network"),
        ("https://[::ffff:192.168.0.1]/x", "an address in your own network"),
        ("http://93.184.216.34/x", "would be asked by http"),
        ("http://10.0.0.1/x", "would be asked by http"),
        ("file:///etc/passwd", "not a web address"),
        ("https://0.0.0.0/x", "an address in your own network"),
    ],
)
def test_redirects_into_private_networks_are_refused(hub: Registry, stores: Stores, place: str, reason: str) -> None:
    for path in hub.blobs:
        hub.redirects[path] = place
    with pytest.raises(SourceError, match=reason):
        pulled(hub)
    assert stores.own.names() == []


def test_a_host_on_the_internet_may_not_lead_back_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(url: str, *args: Any) -> Any:
        raise AssertionError(f"{url} was asked")

    monkeypatch.setattr(web, "_response", asked)
    for url in ("https://127.0.0.1/x", "https://localhost/x", "https://10.0.0.1/x"):
        with pytest.raises(SourceError, match="your own network"):
            web._check_strictly("name", "https://example.org/", url)
    for url in ("https://10.0.0.1/x", "http://93.184.216.34/x", "ftp://127.0.0.1/x"):
        with pytest.raises(SourceError):
            web.request_whole(url, Pace("x"), 1.0, Manners(strict=True))


def test_a_token_stays_with_its_host(hub: Registry) -> None:
    hub.documents["/one"] = b"1"
    hub.redirects["/two"] = "/one"
    with serving() as other:
        other.documents["/three"] = b"3"
        hub.redirects["/four"] = f"http://{other.host}/three"
        manners = Manners(strict=True, headers={"Authorization": "Bearer secret"})
        for path in ("/one", "/two", "/four"):
            web.request_whole(f"http://{hub.host}{path}", Pace("x"), 5.0, manners).response.close()
        assert hub.tokens["/one"] == hub.tokens["/four"] == "Bearer secret"
        assert other.tokens["/three"] is None


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("localhost:9", "localhost refuses the connection"),
        ("nothing.invalid", "there is no host called nothing.invalid, or no network"),
    ],
)
def test_a_registry_that_cannot_be_reached_is_told(host: str, reason: str) -> None:
    with pytest.raises(SourceError, match=rf"cannot be reached: {reason}\. Check the name and the connection\."):
        list(pull(f"{host}/acme/tiny"))


def test_a_silent_registry_is_told_while_it_is_waited_for(
    hub: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    hub.delay = 0.2
    statuses = [event["status"] for event in pulled(hub)]
    assert statuses[:2] == ["pulling manifest", f"waiting for {hub.host}"]
    check(stores, hub)


def test_a_registry_that_falls_silent_is_told(hub: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "PATIENCE", 0.05)
    monkeypatch.setattr(fetching, "QUIET", 0.02)
    hub.pause = 0.2
    statuses = [event["status"] for event in pulled(hub)]
    assert f"waiting for {hub.host}" in statuses[2:]
    check(stores, hub)


def test_waiting_for_a_silent_registry_can_be_stopped(hub: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    hub.delay = 2.0
    events = pull(f"{hub.host}/{NAME}")
    began = time.monotonic()
    assert next(events) and next(events)
    events.close()
    assert time.monotonic() - began < 1.0


# -- lies


def test_bytes_that_hash_to_something_else_are_never_kept(hub: Registry, stores: Stores) -> None:
    path = next(path for path in hub.blobs if path.endswith(digest(BIG)))
    hub.blobs[path] = BIG[:-1] + b"!"
    with pytest.raises(StoreError, match="is damaged or another file") as caught:
        pulled(hub)
    assert caught.value.reason == "bad_digest"
    assert stores.own.names() == [] and not has_blob(stores.own, digest(BIG))
    assert not partial_place(stores.own, digest(BIG)).exists()
    hub.blobs[path] = BIG
    pulled(hub)
    check(stores, hub)


def test_a_bad_beginning_from_an_earlier_run_is_dropped(hub: Registry, stores: Stores) -> None:
    partial = partial_place(stores.own, digest(BIG))
    partial.parent.mkdir(parents=True)
    for content in (b"x" * 1000, b"x" * len(BIG), b"x" * (len(BIG) + 5), BIG[:4321], BIG):
        partial.write_bytes(content)
        pulled(hub)
        check(stores, hub)
        blob_place(stores.own, digest(BIG)).unlink()
    assert left(stores) == set()


@pytest.mark.parametrize("change", [lambda data: data + b"more", lambda data: data[:-1], lambda data: b""])
def test_another_size_than_announced_is_refused(hub: Registry, stores: Stores, change: Any) -> None:
    path = next(path for path in hub.blobs if path.endswith(digest(BIG)))
    hub.blobs[path] = change(BIG)
    with pytest.raises(Error):
        pulled(hub)
    assert stores.own.names() == [] and not has_blob(stores.own, digest(BIG))


HOSTILE: dict[str, Any] = {
    "a path for a digest": lambda layer: layer | {"digest": "sha256:../../../../etc/passwd"},
    "a path without a mark": lambda layer: layer | {"digest": "../../../../tmp/x"},
    "a short digest": lambda layer: layer | {"digest": layer["digest"][:-1]},
    "a long digest": lambda layer: layer | {"digest": layer["digest"] + "0"},
    "a digest with a newline": lambda layer: layer | {"digest": layer["digest"] + "\n"},
    "a digest of another kind": lambda layer: layer | {"digest": "md5:" + "a" * 64},
    "a digest in capitals": lambda layer: layer | {"digest": "sha256:" + "A" * 64},
    "no digest": lambda layer: {"mediaType": "x", "size": 1},
    "a number for a digest": lambda layer: layer | {"digest": 5},
    "a negative size": lambda layer: layer | {"size": -1},
    "an absurd size": lambda layer: layer | {"size": 1 << 62},
    "a text for a size": lambda layer: layer | {"size": "5"},
    "a licence of a gigabyte": lambda layer: (
        layer | {"mediaType": "application/vnd.ollama.image.license", "size": 1 << 30}
    ),
    "an unknown layer of a gigabyte": lambda layer: layer | {"mediaType": "../model", "size": 1 << 30},
    "two sizes": lambda layer: layer | {"size": layer["size"] + 1, "digest": digest(TINY)},
    "no object": lambda layer: "layer",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_manifest_is_refused_before_anything_is_written(
    hub: Registry, stores: Stores, tmp_path: Path, case: str
) -> None:
    manifest = hub.add(NAME, LAYERS)
    manifest["layers"][1] = HOSTILE[case](manifest["layers"][1])
    hub.put(NAME, manifest)
    with pytest.raises(StoreError):
        pulled(hub)
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"no json", b"[]", b"{}", b'{"config": {}}', b'{"layers": []}', b"[" * 100_000, b"x" * (5 << 20)],
    ids=range(8),
)
def test_what_is_no_manifest_is_refused(hub: Registry, stores: Stores, tmp_path: Path, data: bytes) -> None:
    hub.put(NAME, data)
    with pytest.raises(Error):
        pulled(hub)
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("name", ["../x:y", "a/../b:c", "host/ns/..:x", "a:..", "a/b/c/d:e", "a b", "", "a:b/c"])
def test_a_name_is_never_a_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        list(pull(name))
    assert caught.value.reason == "invalid_name" and not (tmp_path / "own").exists()


def test_unknown_models_and_other_architectures_are_refused(hub: Registry, stores: Stores) -> None:
    with pytest.raises(StoreError, match="has no such model"):
        pulled(hub, "acme/tiny:unknown")
    hub.add("acme/llama:x", LAYERS, CONFIG | {"model_family": "llama"})
    with pytest.raises(StoreError, match="'llama'; wgemma runs gemma4 only"):
        pulled(hub, "acme/llama:x")
    hub.add("acme/none:x", LAYERS[1:])
    with pytest.raises(StoreError, match="has no model file"):
        pulled(hub, "acme/none:x")
    hub.add("acme/mlx:x", LAYERS, CONFIG | {"model_format": "safetensors"})
    with pytest.raises(StoreError, match="wgemma reads GGUF only"):
        pulled(hub, "acme/mlx:x")
    hub.add("acme/mlx:y", [("tensor", bytes([i])) for i in range(256)] * 2, CONFIG | {"model_format": "safetensors"})
    with pytest.raises(StoreError, match="wgemma reads GGUF only"):
        pulled(hub, "acme/mlx:y")
    assert hub.asked and not any(digest(BIG) in path for path, _ in hub.asked)


def test_only_allowed_hosts_are_asked(hub: Registry) -> None:
    with pytest.raises(StoreError, match="may not be pulled from"):
        pulled(hub, hosts={"registry.ollama.ai"})
    assert hub.asked == [] and hub.tokens == {}


# -- sharing


def test_blobs_that_ollama_has_are_taken_over(hub: Registry, stores: Stores) -> None:
    for _, data in LAYERS:
        put_blob(stores.ollama, digest(data), [data])
    blob_place(stores.ollama, digest(LAYERS[2][1])).write_bytes(b"damaged")
    pulled(hub)
    check(stores, hub)
    assert not any(digest(BIG) in path for path, _ in hub.asked)
    assert any(digest(LAYERS[2][1]) in path for path, _ in hub.asked)
    shutil.rmtree(stores.ollama.root)
    check(stores, hub)


@pytest.mark.parametrize("linked", [True, False])
def test_a_blob_of_ollamas_is_linked_or_copied(
    hub: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    """The system refuses links to other people's files, and to other disks."""

    def refuse(*_: Any) -> None:
        raise PermissionError

    put_blob(stores.ollama, digest(BIG), [BIG])
    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(fetching, "EVERY", 0.0)
    monkeypatch.setattr(keeping, "PIECE", 1 << 14)
    reports = [event["completed"] for event in pulled(hub) if event.get("digest") == digest(BIG)]
    assert reports == sorted(reports) and reports[-1] == len(BIG)
    check(stores, hub)
    there = blob_place(stores.own, digest(BIG)).samefile(blob_place(stores.ollama, digest(BIG)))
    assert there == linked and left(stores) == set()


def test_a_copy_needs_room_and_can_be_stopped(
    hub: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_blob(stores.ollama, digest(BIG), [BIG])

    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    with monkeypatch.context() as full:
        full.setattr(keeping.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100_000))
        with pytest.raises(StoreError, match=r"needs 200 kB more, but only 100 kB are free"):
            pulled(hub)

    def endless(file: BinaryIO, progress: Callable[[int], None]) -> Iterator[bytes]:
        yield file.read(100)
        while True:
            progress(1)
            yield b""

    monkeypatch.setattr(fetching, "EVERY", 0.0)
    monkeypatch.setattr(keeping, "_pieces", endless)
    events = pull(f"{hub.host}/{NAME}")
    for event in events:
        if event.get("digest") == digest(BIG) and event["completed"]:
            break
    events.close()
    assert not list(stores.own.root.rglob(f"*{digest(BIG)[7:]}*"))


@pytest.mark.parametrize("moment", ["projector", "writing manifest"])
def test_a_model_that_shares_blobs_is_deleted_meanwhile(hub: Registry, stores: Stores, moment: str) -> None:
    hub.add("acme/tiny:other", [("model", TINY), ("license", b"other words")])
    pulled(hub, "acme/tiny:other")
    events = pull(f"{hub.host}/{NAME}")
    for event in events:
        if event["status"] == moment or (moment == "projector" and event.get("digest") == digest(BIG)):
            list(delete(f"{hub.host}/acme/tiny:other"))
            break
    assert list(events)[-1] == {"status": "success"}
    check(stores, hub)


def test_two_pulls_of_one_model_share_the_work(hub: Registry, stores: Stores) -> None:
    hub.pause = 0.01
    outcomes: list[Any] = []

    def work() -> None:
        outcomes.append(pulled(hub)[-1])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [{"status": "success"}] * 3
    assert len([path for path, _ in hub.asked if digest(BIG) in path]) == 1
    check(stores, hub)
    assert left(stores) == set()


def test_a_closed_pull_stops_and_goes_on_later(hub: Registry, stores: Stores) -> None:
    hub.pause = 0.2
    events = pull(f"{hub.host}/{NAME}")
    for event in events:
        if event.get("digest") == digest(BIG) and event["completed"]:
            break
    events.close()
    assert stores.own.names() == [] and 0 < partial_place(stores.own, digest(BIG)).stat().st_size < len(BIG)
    hub.pause = 0.0
    hub.asked.clear()
    pulled(hub)
    check(stores, hub)
    (span,) = [span for path, span in hub.asked if digest(BIG) in path]
    assert int(span[6:].partition("-")[0]) > 0


def test_a_tag_that_moved_leaves_nothing_behind(hub: Registry, stores: Stores) -> None:
    pulled(hub)
    hub.add(NAME, [("model", TINY), ("projector", BIG), ("license", b"other words")])
    pulled(hub)
    check(stores, hub)
    blobs = {path.name for path in (stores.own.root / "blobs").iterdir()}
    assert digest(LAYERS[2][1]).replace(":", "-") not in blobs and len(blobs) == 4


def test_the_time_it_takes_to_hash_what_is_there_is_not_the_servers(
    hub: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_again = fetching._Download._hash_again

    def slowly(download: Any, file: Any) -> None:
        time.sleep(1.2)
        hash_again(download, file)

    monkeypatch.setattr(fetching._Download, "_hash_again", slowly)
    monkeypatch.setattr(web, "WINDOW", 1.0)
    url = f"http://{hub.host}/v2/acme/tiny/blobs/{digest(BIG)}"
    list(fetching.fetch(stores.own, [fetching.Blob(url, digest(BIG), len(BIG))], NAME))
    assert has_blob(stores.own, digest(BIG), len(BIG))


# -- the disk


def test_a_model_larger_than_the_disk_is_not_begun(
    hub: Registry, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda folder: SimpleNamespace(free=100_000))
    with pytest.raises(StoreError, match=r"needs 203 kB more, but only 100 kB are free.*WGEMMA_MODELS"):
        pulled(hub)
    assert not any(digest(BIG) in path for path, _ in hub.asked)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(hub: Registry, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="cannot be written: Permission denied"):
        pulled(hub)


def test_a_file_where_the_store_should_be_is_told(hub: Registry, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("a file")
    with pytest.raises(
        StoreError, match=r"own is not a folder, so the model store .* cannot be used.*set WGEMMA_MODELS"
    ):
        pulled(hub)
    assert hub.tokens == {}
