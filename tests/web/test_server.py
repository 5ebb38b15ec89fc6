"""The server serves the page and the models to its own page only."""

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app_server import Answer, App, running_app
from gguf_writer import write_gguf
from wgemma.embedded import embedded_model
from wgemma.web.site import Site

BIG = 5 << 30


@pytest.fixture(scope="module")
def store(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test store, including hostile entries, with a sparse 5 GiB model (a kilobyte on disk)."""
    copy = shutil.copytree(data / "ollama-store", tmp_path_factory.mktemp("app") / "store")
    add_big_model(copy, "big", BIG)
    return copy


def add_big_model(store: Path, tag: str, size: int) -> Path:
    digest = hashlib.sha256(tag.encode()).hexdigest()
    blob = store / "blobs" / f"sha256-{digest}"
    blob.write_bytes(write_gguf({"general.architecture": "gemma4"}, {"x": ("F32", (32,), None)}))
    with blob.open("r+b") as file:
        file.truncate(size)
    manifests = store / "manifests/registry.ollama.ai/library/gemma4"
    manifest = json.loads((manifests / "tiny").read_text())
    manifest["layers"] = [{**manifest["layers"][0], "digest": f"sha256:{digest}", "size": size}]
    (manifests / tag).write_text(json.dumps(manifest))
    return blob


@pytest.fixture(scope="module")
def app(store: Path) -> Iterator[App]:
    with running_app(store) as running:
        yield running


def is_strict(answer: Answer) -> bool:
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self' 'wasm-unsafe-eval';" in policy
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "server" not in answer.headers
    return (
        answer.headers["x-content-type-options"] == "nosniff"
        and answer.headers["referrer-policy"] == "no-referrer"
        and answer.headers["cross-origin-opener-policy"] == "same-origin"
        and answer.headers["cross-origin-resource-policy"] == "same-origin"
        and "access-control-allow-origin" not in answer.headers
    )


# -- the page


def test_everything_of_the_page_is_there_and_strict(app: App) -> None:
    site = Site()
    assert {"", "app.js", "style.css", "wgemma.js", "worker.js", "replay.js", "sources.js", "sw.js"} < set(site.assets)
    assert {"manifest.webmanifest", "wgemma.zip", "pyodide/pyodide.mjs", "icons/icon.svg"} < set(site.assets)
    for address, asset in site.assets.items():
        answer = app.ask(f"/{address}")
        assert (answer.status, answer.headers["content-type"]) == (200, asset.kind), address
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["etag"] == f'"{hashlib.sha256(answer.body).hexdigest()}"'
        assert is_strict(answer)


def test_a_browser_that_has_a_file_is_not_sent_it_again(app: App) -> None:
    etag = app.ask("/app.js").headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = app.ask("/app.js", if_none_match=known)
        assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", etag)
        assert is_strict(answer)
    assert app.ask("/app.js", if_none_match='"other"').status == 200


def test_the_service_worker_knows_every_file_by_its_hash(app: App) -> None:
    script = app.ask("/sw.js").body.decode()
    start = script.index("const SHELL = ") + len("const SHELL = ")
    shell = json.JSONDecoder().raw_decode(script, start)[0]
    assert {"", "app.js", "pyodide/pyodide.asm.wasm", "wgemma.zip"} < set(shell["files"])
    assert "sw.js" not in shell["files"]
    assert not [address for address in shell["files"] if address.endswith((".d.ts", ".txt"))]
    for model in shell["models"]:
        assert model["embedded"]
        assert model["url"] in shell["files"]


def test_heads_have_no_bodies(app: App) -> None:
    for path in ("/", "/wgemma.zip", "/models.json", "/models/gemma4-big.gguf"):
        answer = app.ask(path, "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) > 0


@pytest.mark.parametrize(
    "path",
    [
        "/server.py", "/site.py", "/web/server.py", "/__init__.py", "/index.html", "/../server.py", "/../../api.py",
        "/%2e%2e/api.py", "/..%2fapi.py", "/..%5capi.py", "/ui/../server.py", "/ui/%2e%2e/server.py", "/ui/", "/ui",
        "/pyodide/", "/pyodide/../server.py", "//etc/passwd", "/etc/passwd", "/%2fetc%2fpasswd", "/app.js/",
        "/app.js%00", "/app.js%00.css", "/APP.JS", "/.git/config", "/icons/", "/cli/app.py", "/models", "/models/",
        "/models/..",
        "/models/%2e%2e%2fmodels.json", "/models/gemma4:big", "/models/../app.js", "/models/%2fetc%2fpasswd",
        "/models/gemma4-big.gguf/", "/models/gemma4-big.gguf%00", "/models/sha256-" + "0" * 64, "/blobs", "/manifests",
        "/\\..\\api.py", "/%ff%fe", "/%", "/?/app.js/../x.py" + "y" * 2000 + "/../",
    ],
)  # fmt: skip
def test_nothing_else_is_there(app: App, path: str) -> None:
    answer = app.ask(path)
    if path.startswith("/?"):
        assert answer.status == 200  # the query is not part of the address
        return
    assert (answer.status, answer.body) == (404, b"There is nothing at this address.\n"), path
    assert is_strict(answer)


def raw(app: App, request: bytes) -> bytes:
    """The server's response to bytes no proper client sends."""
    with socket.create_connection((app.host, app.port), timeout=10) as line:
        said = b""
        with suppress(ConnectionError, BrokenPipeError):  # it may hang up early
            line.sendall(request)
            while piece := line.recv(65536):
                said += piece
    return said


@pytest.mark.parametrize(
    "request_line",
    [b"GET http://evil.example/app.js HTTP/1.1", b"GET * HTTP/1.1", b"GET ../api.py HTTP/1.1", b"CONNECT a:1 HTTP/1.1"],
)
def test_odd_request_lines_lead_nowhere(app: App, request_line: bytes) -> None:
    said = raw(app, request_line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert said[9:12] in (b"400", b"404", b"405")


def test_broken_requests_do_not_break_the_server(app: App) -> None:
    for mischief in (
        b"\0" * 100,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000,
        b"GET /\r\n\r\n",
        b"\x16\x03\x01 \r\n\r\n",
    ):
        raw(app, mischief)
    assert app.ask("/").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"])
def test_everything_is_read_only(app: App, method: str) -> None:
    for path in ("/", "/models.json", "/models/gemma4-tiny.gguf", "/nowhere"):
        answer = app.ask(path, method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
        assert is_strict(answer)


# -- who may ask


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8460", "localhost.evil.example", "127.0.0.1.evil.example",
        "127.0.0.1@evil.example", "localhost:80:80", "localhost, evil.example", "", "[::1", "::1", "[::2]",
        "0.0.0.0", "127.0.0.2", "2130706433",
        "localhost.", "[::ffff:127.0.0.1]", "local host", "localhost/",
    ],
)  # fmt: skip
def test_names_that_are_not_ours_get_no_answer(app: App, host: str) -> None:
    for path in ("/", "/models.json", "/models/gemma4-tiny.gguf"):
        answer = app.ask(path, host=host)
        assert answer.status in (400, 403), host  # 400: not even a host
        assert b"gguf" not in answer.body


def test_a_request_without_a_host_or_with_two_gets_no_answer(app: App) -> None:
    for lines in (b"HTTP/1.0\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"):
        assert raw(app, b"GET /models.json " + lines + b"Connection: close\r\n\r\n")[9:12] in (b"400", b"403")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8460", "[::1]:80"])
def test_names_of_this_machine_are_answered(app: App, host: str) -> None:
    assert app.ask("/models.json", host=host).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "http://localhost", "http://localhost:1", "file://", "http://127.0.0.1.evil.example",
        "",
    ],
)  # fmt: skip
def test_pages_of_other_origins_may_not_ask(app: App, origin: str) -> None:
    answer = app.ask("/models.json", origin=origin)
    assert (answer.status, answer.body) == (403, b"Other sites may not use this server.\n")


def test_our_own_page_may_ask(app: App) -> None:
    own = {"origin": f"http://{app.host}:{app.port}", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}
    assert app.ask("/models.json", **own).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
@pytest.mark.parametrize("path", ["/", "/app.js", "/models.json", "/models/gemma4-tiny.gguf"])
def test_other_sites_may_only_link_to_the_page(app: App, site: str, path: str) -> None:
    link = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert app.ask(path, sec_fetch_site=site, **link).status == (200 if path == "/" else 403)
    for mode, dest in (("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe"), ("no-cors", "image")):
        assert app.ask(path, sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=dest).status == 403


# -- models


def test_the_list_has_the_embedded_model_first_and_only_what_can_be_run(app: App, store: Path) -> None:
    answer = app.ask("/models.json")
    assert answer.headers["cache-control"] == "no-store"
    records = json.loads(answer.body)
    assert [record["name"] for record in records if record.get("embedded")] == [records[0]["name"]]
    expected = json.loads((store / "EXPECTED.json").read_text())["models"]
    runnable = {name for name, fields in expected.items() if fields.get("runnable")}
    assert {record["name"] for record in records[1:]} == runnable | {"gemma4:big"}
    for record in records:
        assert {"name", "url", "size", "quantisation", "parameters", "capabilities", "digest", "settings"} <= set(
            record
        )
    assert str(store).encode() not in answer.body
    pirate = next(record for record in records if record["name"] == "someone/mygemma:v1")
    assert (pirate["url"], pirate["settings"]["topK"]) == ("models/someone-mygemma-v1.gguf", 20)
    assert pirate["system"].startswith("You are a pirate")


def test_every_listed_model_is_sent_as_it_is(app: App) -> None:
    for record in json.loads(app.ask("/models.json").body):
        if record["size"] < 1 << 30:
            answer = app.ask(f"/{record['url']}")
            assert (answer.status, len(answer.body)) == (200, record["size"])
            assert hashlib.sha256(answer.body).hexdigest() == record["digest"]
            assert (answer.headers["etag"], answer.headers["cache-control"]) == (f'"{record["digest"]}"', "no-store")
            assert answer.headers["accept-ranges"] == "bytes"
            assert is_strict(answer)


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-99", 0, 99),
        ("bytes=100-100", 100, 100),
        ("bytes=-7", -7, -1),
        ("bytes=15487000-99999999999999999999999", 15487000, -1),
    ],
)
def test_ranges_are_exact(app: App, asked: str, first: int, last: int) -> None:
    path = embedded_model()
    assert path is not None
    data = path.read_bytes()
    first, last = (first + len(data) if first < 0 else first), (last + len(data) if last < 0 else last)
    answer = app.ask("/models/wgemma-tiny.gguf", range=asked)
    assert (answer.status, answer.body == data[first : last + 1]) == (206, True)
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(data)}"
    assert is_strict(answer)


def test_offsets_beyond_four_gigabytes_are_reached(app: App, store: Path) -> None:
    (blob,) = (path for path in (store / "blobs").iterdir() if path.stat().st_size == BIG)
    with blob.open("r+b") as file:
        file.seek(BIG - 3)
        file.write(b"end")
    answer = app.ask("/models/gemma4-big.gguf", range=f"bytes={BIG - 3}-")
    assert (answer.status, answer.body) == (206, b"end")
    assert answer.headers["content-range"] == f"bytes {BIG - 3}-{BIG - 1}/{BIG}"


@pytest.mark.parametrize("asked", ["bytes=0-1,5-9", "bytes=5368709120-", "bytes=-0", "bytes=9-1", "bytes=x", "bytes="])
def test_what_is_not_one_range_inside_the_file_is_refused(app: App, asked: str) -> None:
    answer = app.ask("/models/gemma4-big.gguf", range=asked)
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{BIG}")
    assert is_strict(answer)


def test_a_range_of_another_version_is_not_mixed_with_this_one(app: App) -> None:
    etag = app.ask("/models/gemma4-tiny.gguf", "HEAD").headers["etag"]
    assert app.ask("/models/gemma4-tiny.gguf", range="bytes=5-9", if_range=etag).status == 206
    for other in ('"other"', f"W/{etag}", "Sun, 15 Nov 2026 12:00:00 GMT"):
        answer = app.ask("/models/gemma4-tiny.gguf", range="bytes=5-9", if_range=other)
        assert (answer.status, len(answer.body)) == (200, 1335840)
    assert app.ask("/models/gemma4-tiny.gguf", range="bytes=5-9", if_none_match=etag).status == 304


def test_a_model_that_comes_or_goes_is_noticed(app: App, store: Path) -> None:
    assert app.ask("/models/gemma4-new.gguf").status == 404
    blob = add_big_model(store, "new", 1 << 20)
    assert app.ask("/models/gemma4-new.gguf", range="bytes=0-3").body == b"GGUF"
    os.truncate(blob, 1 << 19)  # no longer what was listed
    assert app.ask("/models/gemma4-new.gguf", range="bytes=0-3").status == 404
    app.ask("/models.json")
    assert app.ask("/models/gemma4-new.gguf", range="bytes=0-3").headers["content-range"] == "bytes 0-3/524288"
    blob.unlink()
    assert app.ask("/models/gemma4-new.gguf", range="bytes=0-3").status == 404
    (store / "manifests/registry.ollama.ai/library/gemma4/new").unlink()


def test_large_files_are_not_read_into_memory(app: App) -> None:
    app.ask("/models/gemma4-big.gguf", range="bytes=0-99")
    before = app.resident()
    with socket.create_connection((app.host, app.port), timeout=30) as line:
        line.sendall(b"GET /models/gemma4-big.gguf HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-300000000\r\n\r\n")
        taken = 0
        while taken < 300_000_000:
            taken += len(line.recv(1 << 20))
    assert app.resident() - before < 64 << 20


def test_a_reader_that_leaves_costs_nothing(app: App) -> None:
    before = app.open_files()
    lines = [socket.create_connection((app.host, app.port), timeout=30) for _ in range(20)]
    for line in lines:
        line.sendall(b"GET /models/gemma4-big.gguf HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(12) == b"HTTP/1.1 200"
    assert app.open_files() >= before + 20
    for line in lines:
        line.close()
    deadline = time.monotonic() + 10
    while app.open_files() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert app.open_files() <= before


def test_a_file_that_shrinks_while_it_is_sent_ends_in_a_cut_line(app: App, store: Path) -> None:
    blob = add_big_model(store, "shrinking", 1 << 30)
    with socket.create_connection((app.host, app.port), timeout=30) as line:
        line.sendall(b"GET /models/gemma4-shrinking.gguf HTTP/1.1\r\nHost: localhost\r\n\r\n")
        taken = len(line.recv(4096))
        with blob.open("r+b") as file:
            file.truncate(1 << 20)
        while piece := line.recv(1 << 20):
            taken += len(piece)
    assert taken < 1 << 30
    assert app.ask("/").status == 200
