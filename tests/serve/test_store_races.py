"""Clients of the store that leave, stall, or want the same at the same time."""

import gc
import hashlib
import json
import platform
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api_server import TINY, Api, serving
from fake_models import Garage
from registry_server import TINY as FILE
from registry_server import Registry
from registry_server import serving as registry_serving
from wgemma.files import fetching, keeping, waiting
from wgemma.files.stores import Stores
from wgemma.serve import ollama_store
from wgemma.serve.settings import Settings

DATA = b"x" * 100_000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
ASK = {"model": TINY, "messages": [{"role": "user", "content": "x"}], "stream": False, "format": "json"}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with registry_serving() as server:
        server.add("acme/tiny:x", [("model", FILE + b"\0" * 1_000_000)])
        yield server


@pytest.fixture
def store_api(registry: Registry) -> Iterator[Api]:
    with serving(Settings(registries=(registry.host,)), Garage()) as api:
        yield api


def half_sent(api: Api, digest: str = DIGEST, data: bytes = DATA) -> socket.socket:
    """An upload of which the second half is missing."""
    connection = socket.create_connection(("127.0.0.1", api.port), timeout=10)
    head = f"POST /api/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data[: len(data) // 2])
    return connection


def begun(api: Api, path: str, body: Any) -> socket.socket:
    """A request whose answer has begun."""
    connection, data = socket.create_connection(("127.0.0.1", api.port), timeout=10), json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    assert connection.recv(12) == b"HTTP/1.1 200"
    return connection


def left_over() -> list[str]:
    root = Stores.find().own.root
    return [path.name for path in root.rglob("*") if path.suffix in (".partial", ".lock")]


def test_an_upload_that_breaks_off_leaves_nothing(store_api: Api) -> None:
    connection = half_sent(store_api)
    store_api.wait(lambda: len(left_over()) == 2)
    connection.close()
    store_api.wait(lambda: left_over() == [])
    assert store_api.ask(f"/api/blobs/{DIGEST}", method="HEAD").status == 404
    assert store_api.ask(f"/api/blobs/{DIGEST}", DATA).status == 201


def asked_first(api: Api, *headers: str) -> socket.socket:
    """A connection to upload on, of which only the head is sent."""
    connection = socket.create_connection(("127.0.0.1", api.port), timeout=10)
    head = (f"POST /api/blobs/{DIGEST} HTTP/1.1", "Host: localhost", f"Content-Length: {len(DATA)}", *headers)
    connection.sendall("\r\n".join([*head, "\r\n"]).encode())
    return connection


def after_the_body(connection: socket.socket) -> bytes:
    """What comes if the body is sent all the same, and another request after it."""
    with connection:
        connection.sendall(DATA + b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_blob_that_is_there_is_not_read_again(store_api: Api) -> None:
    assert store_api.ask(f"/api/blobs/{DIGEST}", DATA).status == 201
    written = Stores.find().own.root / "blobs" / DIGEST.replace(":", "-")
    before = written.stat().st_ino
    connection = asked_first(store_api)
    assert connection.recv(12) == b"HTTP/1.1 200"
    assert b'"version"' in after_the_body(connection)
    assert written.stat().st_ino == before


def test_who_asks_before_sending_a_blob_that_is_there_sends_nothing(store_api: Api) -> None:
    assert store_api.ask(f"/api/blobs/{DIGEST}", DATA).status == 201
    with asked_first(store_api, "Expect: 100-continue") as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))  # until the server hangs up
    assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer.lower()


def test_a_blob_larger_than_the_disk_is_not_begun(store_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping.shutil, "disk_usage", lambda folder: SimpleNamespace(free=len(DATA) - 1))
    connection = asked_first(store_api)
    assert connection.recv(12) == b"HTTP/1.1 507"
    assert b'"version"' in after_the_body(connection)
    assert not Stores.find().own.root.exists()


def test_two_uploads_of_one_blob(store_api: Api) -> None:
    first = half_sent(store_api)
    store_api.wait(lambda: len(left_over()) == 2)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(store_api.ask, f"/api/blobs/{DIGEST}", DATA)
        time.sleep(0.1)
        assert not second.done()
        first.sendall(DATA[len(DATA) // 2 :])
        assert first.recv(12) == b"HTTP/1.1 201" and second.result().status == 201
    first.close()
    assert left_over() == []


def test_who_waits_too_long_for_another_upload_is_told(store_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama_store, "PATIENCE", 0.1)
    first = half_sent(store_api)
    store_api.wait(lambda: len(left_over()) == 2)
    answer = store_api.ask(f"/api/blobs/{DIGEST}", DATA)
    assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
    first.close()


def test_uploads_that_stall_hold_up_nobody_else(store_api: Api) -> None:
    """They would have taken every thread that the others need, too."""
    stalled = []
    for i in range(ollama_store.AT_ONCE):
        data = bytes([i]) * 1000
        stalled.append(half_sent(store_api, f"sha256:{hashlib.sha256(data).hexdigest()}", data))
    store_api.wait(lambda: len(left_over()) == 2 * ollama_store.AT_ONCE)
    answer = store_api.ask(f"/api/blobs/{DIGEST}", DATA)
    assert answer.status == 503 and "busy" in answer.json["error"]
    assert store_api.ask("/api/chat", ASK).status == 200
    assert store_api.ask("/api/tags").status == 200
    for connection in stalled:
        connection.close()
    store_api.wait(lambda: left_over() == [])
    store_api.wait(lambda: store_api.ask(f"/api/blobs/{DIGEST}", DATA).status == 201)  # once a place is free


def test_a_blob_of_unknown_length_has_a_limit(store_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    class Small:
        blob = 50_000

    monkeypatch.setattr(ollama_store, "BOUNDS", Small)
    connection = socket.create_connection(("127.0.0.1", store_api.port), timeout=10)
    head = f"POST /api/blobs/{DIGEST} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head.encode() + f"{len(DATA):x}\r\n".encode() + DATA + b"\r\n0\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 413"
    connection.close()
    store_api.wait(lambda: left_over() == [])


def test_two_pulls_of_one_model_share_the_work(store_api: Api, registry: Registry) -> None:
    registry.pause = 0.005
    body = {"model": f"{registry.host}/acme/tiny:x"}
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda _: store_api.ask("/api/pull", body).text.splitlines(), range(2)))
    assert [json.loads(lines[-1]) for lines in told] == [{"status": "success"}] * 2
    large = [path for path, wanted in registry.asked if wanted.endswith(f"-{len(FILE) + 1_000_000 - 1}")]
    assert len(large) == 1
    assert left_over() == []


def test_who_waits_for_another_process_does_not_hear_its_name(store_api: Api, registry: Registry) -> None:
    digest = f"sha256:{hashlib.sha256(FILE + bytes(1_000_000)).hexdigest()}"
    told = b""
    with keeping.holding(Stores.find().own, digest):
        connection = begun(store_api, "/api/pull", {"model": f"{registry.host}/acme/tiny:x"})
        while b"waiting for" not in told:
            told += connection.recv(65536)
    with connection:
        while b"success" not in told:
            told += connection.recv(65536)
    assert b"waiting for another process, which" in told
    assert platform.node().encode() not in told and b".lock" not in told


def test_who_waits_for_a_silent_registry_hears_of_it(
    store_api: Api, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.05)
    registry.delay = 0.2
    told = store_api.ask("/api/pull", {"model": f"{registry.host}/acme/tiny:x"}).text.splitlines()
    assert json.loads(told[1]) == {"status": f"waiting for {registry.host}"}
    assert json.loads(told[-1]) == {"status": "success"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_during_a_pull_stops_it(store_api: Api, registry: Registry, stream: bool) -> None:
    registry.pause = 0.05
    body = {"model": f"{registry.host}/acme/tiny:x", "stream": stream}
    connection, data = socket.create_connection(("127.0.0.1", store_api.port)), json.dumps(body).encode()
    head = f"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    blobs = Stores.find().own.root / "blobs"
    store_api.wait(lambda: any((keeping.size_of(path) or 0) > 400 for path in blobs.glob("*.partial")))
    connection.close()
    store_api.wait(lambda: not any(name.endswith(".lock") for name in left_over()))
    registry.pause = 0
    assert json.loads(store_api.ask("/api/pull", body).text.splitlines()[-1]) == {"status": "success"}
    assert any(wanted and not wanted.startswith("bytes=0-") for _, wanted in registry.asked)  # it went on from there


def test_what_fails_after_its_client_left_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    left, asked = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse_late() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                asked.set()
                left.wait(10)
                time.sleep(0.1)  # until the server has noticed
                connection.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=refuse_late)
        thread.start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(Settings(registries=(host,)), Garage()) as api:
            connection = begun(api, "/api/pull", {"model": f"{host}/acme/tiny:x"})
            assert asked.wait(10)
            connection.close()
            left.set()
            thread.join()
        gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_registry_that_stalls_can_be_left(
    store_api: Api, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing comes for long; soon after the client has left its pull is stopped, and nobody waits for that."""
    stopped: list[str] = []
    stop = fetching._Crew.stop

    def noted(crew: fetching._Crew) -> None:
        stopped.append(threading.current_thread().name)
        stop(crew)

    monkeypatch.setattr(fetching._Crew, "stop", noted)
    registry.pause = 20
    connection = begun(store_api, "/api/pull", {"model": f"{registry.host}/acme/tiny:x"})
    store_api.wait(lambda: any(name.endswith(".lock") for name in left_over()))
    connection.close()
    store_api.wait(lambda: stopped)
    assert len(stopped) == 1 and stopped[0].startswith("store")  # not in the event loop, for it takes a second
    assert store_api.ask("/api/chat", ASK).status == 200


def test_a_server_ends_though_a_pull_stalls(registry: Registry) -> None:
    registry.pause = 20
    with serving(Settings(registries=(registry.host,)), Garage()) as api:
        connection = begun(api, "/api/pull", {"model": f"{registry.host}/acme/tiny:x"})
        api.wait(lambda: any(name.endswith(".lock") for name in left_over()))
        connection.close()
        before = time.monotonic()
    assert time.monotonic() - before < 10


def test_a_model_that_is_pulled_again_while_it_answers(store_api: Api, registry: Registry, tmp_path: Path) -> None:
    name = f"{registry.host}/acme/tiny:x"
    assert store_api.ask("/api/pull", {"model": name, "stream": False}).json == {"status": "success"}
    garage: Any = store_api.service.models._load_model
    garage.attributes = {"words": 100, "pause": 0.01}
    chat = begun(store_api, "/api/chat", {**ASK, "model": name, "stream": True})
    assert store_api.ask("/api/pull", {"model": name, "stream": False}).json == {"status": "success"}
    assert store_api.ask("/api/delete", {"model": name}, method="DELETE").status == 200
    assert store_api.ask("/api/chat", {**ASK, "model": name}).status == 404
    text = b""
    while piece := chat.recv(65536):
        text += piece
        if b'"done":true' in text:
            break
    assert text.count(b"word ") == 100
    store_api.wait(lambda: garage.open == [])
    chat.close()


def test_only_a_pull_that_changes_a_model_unloads_it(store_api: Api, registry: Registry) -> None:
    """Many programs pull their model whenever they start."""
    name = f"{registry.host}/acme/tiny:x"
    garage: Any = store_api.service.models._load_model
    for size in (1, 1, 2):
        registry.add("acme/tiny:x", [("model", FILE + b"\0" * size)])
        assert store_api.ask("/api/pull", {"model": name, "stream": False}).json == {"status": "success"}
        assert store_api.ask("/api/chat", {**ASK, "model": name}).status == 200
    assert [model.closed for model in garage.loaded] == [True, False]
    assert store_api.ask("/api/copy", {"source": name, "destination": name}).status == 200
    assert store_api.ask("/api/create", {"model": name, "from": name, "system": "s"}).status == 200
    assert garage.open == []
