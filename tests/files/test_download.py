"""Downloads against a real server on this machine: what is kept, resumed, refused, and shared."""

import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from full_disk import files_of_at_most
from gguf_writer import write_gguf
from wgemma.errors import GgufError, SourceError
from wgemma.files import download as module
from wgemma.files import web
from wgemma.files.download import cache_folder, download, readable
from wgemma.files.gguf import Gguf
from wgemma.files.sources import HttpSource

DATA = b"GGUF" + bytes(i * i % 251 for i in range(100_000))
OTHER = b"GGUF" + bytes(i * i % 241 for i in range(100_000))
SHA256 = hashlib.sha256(DATA).hexdigest()
PIECE = 10_000


class Server:
    """Serves `data` under every path, as its fields say."""

    def __init__(self) -> None:
        self.data = DATA
        self.headers: dict[str, str] = {"ETag": '"one"'}
        self.redirect: dict[str, str] = {}  # headers of a redirect to the file
        self.ranges = True
        self.length = True  # say how long a whole file is
        self.dripping = threading.Event()  # never set
        self.limit: int | None = None  # respond with errors after this many bytes of the file
        self.cut: int | None = None  # cut a response after this many bytes
        self.requests = 0
        self.served: list[tuple[int, int]] = []  # the spans sent, except requests for the first four bytes
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def nbytes(self) -> int:
        return sum(stop - start for start, stop in self.served)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        if self.redirect and not request.path.startswith("/storage"):
            self._head(request, 302, {"Location": "/storage", "Content-Length": "0", **self.redirect})
            return
        if not self.ranges:
            self._head(request, 200, {"Content-Length": str(len(self.data))} if self.length else {})
            first = 8 if "drip" in request.path else 0
            if first:
                request.wfile.write(self.data[:first])
                self.dripping.wait(0.2)
            request.wfile.write(self.data[first : self.cut])
            request.close_connection = True
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
        assert asked is not None
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(self.data))
        if stop > 4:
            self.reached.set()
            self.gate.wait()
            if self.limit is not None and self.nbytes + stop - start > self.limit:
                request.send_error(503)
                return
        span = {"Content-Range": f"bytes {start}-{stop - 1}/{len(self.data)}", "Content-Length": str(stop - start)}
        self._head(request, 206, span | self.headers)
        sent = stop if self.cut is None else min(stop, start + self.cut)
        if stop > 4:
            self.served.append((start, sent))
        request.wfile.write(self.data[start:sent])

    @staticmethod
    def _head(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.end_headers()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgemma.files.sources.PAUSE", 0.001)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "PIECE", PIECE)
    server = Server()
    yield server
    server.stop()


def files(folder: Path) -> list[str]:
    """The suffixes of the files in the cache."""
    return sorted(path.name.partition(".gguf")[2] for path in folder.iterdir())


def start_and_fail(server: Server, folder: Path, after: int, url: str = "/m.gguf") -> None:
    server.limit = after
    with pytest.raises(SourceError, match="503"):
        download(server.url + url, folder=folder)
    server.limit = None
    assert files(folder) == [".part", ".part.json"]


# The straight way


def test_a_file_is_fetched_in_pieces_hashed_and_recorded(server: Server, tmp_path: Path) -> None:
    heard: list[int] = []
    path = download(server.url + "/m.gguf", folder=tmp_path / "a" / "b", progress=heard.append)
    assert path.read_bytes() == DATA
    assert json.loads(path.with_name(path.name + ".json").read_text()) == {"size": len(DATA), "sha256": SHA256}
    assert files(path.parent) == ["", ".json"]
    assert sum(heard) == len(DATA)
    assert max(heard) == PIECE
    assert server.nbytes == len(DATA)


def test_the_second_call_needs_no_network(server: Server, tmp_path: Path) -> None:
    path = download(server.url + "/m.gguf", folder=tmp_path)
    server.stop()
    heard: list[int] = []
    assert download(server.url + "/m.gguf", folder=tmp_path, progress=heard.append) == path
    assert download(f"{server.url}/m.gguf#sha256={SHA256}", folder=tmp_path) == path
    assert heard == []
    with pytest.raises(SourceError, match="cannot be reached"):
        download(server.url + "/other.gguf", folder=tmp_path)


@pytest.mark.parametrize("damage", ["file shorter", "file gone", "record gone", "record garbled", "record a list"])
def test_a_file_unlike_its_record_is_fetched_again(server: Server, tmp_path: Path, damage: str) -> None:
    path = download(server.url + "/m.gguf", folder=tmp_path)
    record = path.with_name(path.name + ".json")
    match damage:
        case "file shorter":
            path.write_bytes(DATA[:-1])
        case "file gone":
            path.unlink()
        case "record gone":
            record.unlink()
        case "record garbled":
            record.write_bytes(b"\xff{")
        case "record a list":
            record.write_text("[1]")
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert server.nbytes == 2 * len(DATA)


def test_urls_that_differ_only_in_their_query_are_two_files(server: Server, tmp_path: Path) -> None:
    first = download(server.url + "/m.gguf?v=1", folder=tmp_path)
    server.data = OTHER
    second = download(server.url + "/m.gguf?v=2", folder=tmp_path)
    assert (first.read_bytes(), second.read_bytes()) == (DATA, OTHER)


# Cut and taken up again


def test_a_cut_run_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    start_and_fail(server, tmp_path, after=35_000)
    assert server.served == [(0, 10_000), (10_000, 20_000), (20_000, 30_000)]
    heard: list[int] = []
    path = download(f"{server.url}/m.gguf#sha256={SHA256}", folder=tmp_path, progress=heard.append)
    assert path.read_bytes() == DATA
    assert server.nbytes == len(DATA)
    assert sum(heard) == len(DATA)
    assert files(tmp_path) == ["", ".json"]


def test_connections_that_break_off_cost_nothing_twice(server: Server, tmp_path: Path) -> None:
    server.cut = 3_000
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert server.nbytes == len(DATA)


def test_a_part_that_was_complete_is_only_hashed(server: Server, tmp_path: Path) -> None:
    start_and_fail(server, tmp_path, after=20_000)
    next(tmp_path.glob("*.part")).write_bytes(DATA)
    before = server.nbytes
    assert download(f"{server.url}/m.gguf#sha256={SHA256}", folder=tmp_path).read_bytes() == DATA
    assert server.nbytes == before


@pytest.mark.parametrize("change", ["etag", "size", "record", "part too long", "validator gone"])
def test_a_part_of_something_else_is_thrown_away(server: Server, tmp_path: Path, change: str) -> None:
    start_and_fail(server, tmp_path, after=20_000)
    match change:
        case "etag":
            server.data, server.headers = OTHER, {"ETag": '"two"'}
        case "size":
            server.data = OTHER[:-1]
        case "record":
            next(tmp_path.glob("*.part.json")).unlink()
        case "part too long":
            next(tmp_path.glob("*.part")).write_bytes(OTHER + b"!")
        case "validator gone":
            server.data, server.headers = OTHER, {}
    before = server.nbytes
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == server.data
    assert server.nbytes - before == len(server.data)


def test_last_modified_will_do_as_a_validator(server: Server, tmp_path: Path) -> None:
    server.headers = {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
    start_and_fail(server, tmp_path, after=20_000)
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert server.nbytes == len(DATA)


@pytest.mark.parametrize(("fragment", "fetched"), [("", 120_004), (f"#sha256={SHA256}", 100_004)])
def test_without_a_validator_only_a_known_digest_allows_going_on(
    server: Server, tmp_path: Path, fragment: str, fetched: int
) -> None:
    server.headers = {}
    start_and_fail(server, tmp_path, after=20_000, url="/m.gguf" + fragment)
    assert download(server.url + "/m.gguf" + fragment, folder=tmp_path).read_bytes() == DATA
    assert server.nbytes == fetched


def test_a_file_that_changes_on_the_way_is_started_anew_next_time(server: Server, tmp_path: Path) -> None:
    def change(nbytes: int) -> None:
        server.data, server.headers = OTHER, {"ETag": '"two"'}

    with pytest.raises(SourceError, match="changed on the server"):
        download(server.url + "/m.gguf", folder=tmp_path, progress=change)
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == OTHER


def test_an_interrupt_leaves_the_part_and_no_lock(server: Server, tmp_path: Path) -> None:
    def interrupt(nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url + "/m.gguf", folder=tmp_path, progress=interrupt)
    assert files(tmp_path) == [".part", ".part.json"]


def test_a_server_that_drips_is_given_up_and_the_next_run_goes_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def stall(nbytes: int) -> None:
            server.cut = 1  # from now on a byte per request
            patch.setattr(web, "WINDOW", 0.05)
            patch.setattr(web, "SLOWEST", 1 << 30)

        with pytest.raises(SourceError, match=r"too slow: .* a download resumes where it stopped\.$"):
            download(server.url + "/m.gguf", folder=tmp_path, progress=stall)
    assert files(tmp_path) == [".part", ".part.json"]
    server.cut, server.served = None, []
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert min(start for start, _ in server.served) == PIECE


# Digests


@pytest.mark.parametrize("hint", [f"#sha256={SHA256}", f"#sha256={SHA256.upper()}", f"?sha256={SHA256}&x=1"])
def test_the_right_digest_in_the_url_is_accepted(server: Server, tmp_path: Path, hint: str) -> None:
    assert download(server.url + "/m.gguf" + hint, folder=tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("hint", ["#sha256=" + "0" * 64, "?sha256=" + "0" * 64])
def test_a_wrong_digest_in_the_url_is_refused(server: Server, tmp_path: Path, hint: str) -> None:
    with pytest.raises(SourceError, match=f"hash to {SHA256}, but 0000.* was expected"):
        download(server.url + "/m.gguf" + hint, folder=tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("hint", ["#sha256=", "#sha256=12ab", "#sha256=" + "g" * 64])
def test_a_digest_that_is_none_is_refused_before_anything_is_asked(server: Server, tmp_path: Path, hint: str) -> None:
    with pytest.raises(SourceError, match="64 hexadecimal digits"):
        download(server.url + "/m.gguf" + hint, folder=tmp_path)
    assert server.requests == 0


def test_a_wrong_digest_leaves_the_good_file_of_before(server: Server, tmp_path: Path) -> None:
    path = download(server.url + "/m.gguf", folder=tmp_path)
    server.data, server.headers = OTHER, {"ETag": '"two"'}
    with pytest.raises(SourceError, match="was expected"):
        download(f"{server.url}/m.gguf#sha256={'0' * 64}", folder=tmp_path)
    requests = server.requests
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert server.requests == requests
    wanted = hashlib.sha256(OTHER).hexdigest()
    assert download(f"{server.url}/m.gguf#sha256={wanted}", folder=tmp_path) == path
    assert path.read_bytes() == OTHER


def test_damage_in_the_part_is_found_by_the_digest(server: Server, tmp_path: Path) -> None:
    start_and_fail(server, tmp_path, after=20_000)
    part = next(tmp_path.glob("*.part"))
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    url = f"{server.url}/m.gguf#sha256={SHA256}"
    with pytest.raises(SourceError, match="damaged or a different file"):
        download(url, folder=tmp_path)
    assert files(tmp_path) == []
    assert download(url, folder=tmp_path).read_bytes() == DATA


def test_an_etag_that_is_a_sha256_must_match(server: Server, tmp_path: Path) -> None:
    server.headers = {"ETag": f'"{SHA256}"'}
    assert download(server.url + "/good.gguf", folder=tmp_path).read_bytes() == DATA
    server.data = OTHER
    with pytest.raises(SourceError, match=f"but {SHA256} was expected"):
        download(server.url + "/bad.gguf", folder=tmp_path)


def test_the_digest_of_a_redirect_counts_and_not_the_etag_behind_it(server: Server, tmp_path: Path) -> None:
    server.headers = {"ETag": '"' + "a" * 64 + '"'}
    server.redirect = {"X-Linked-ETag": f'"{SHA256}"'}
    assert download(server.url + "/good.gguf", folder=tmp_path).read_bytes() == DATA
    server.data = OTHER
    with pytest.raises(SourceError, match=f"but {SHA256} was expected"):
        download(server.url + "/bad.gguf", folder=tmp_path)


def test_a_server_that_announces_another_digest_is_not_downloaded(server: Server, tmp_path: Path) -> None:
    server.headers = {"ETag": f'"{SHA256}"'}
    with pytest.raises(SourceError, match="the URL's digest and the server's differ"):
        download(f"{server.url}/m.gguf#sha256={'0' * 64}", folder=tmp_path)
    assert server.nbytes == 0


# Refused


@pytest.mark.parametrize("data", [b"<!DOCTYPE html>" + bytes(50_000), b"GGU", b"x"])
def test_what_is_not_a_gguf_is_not_downloaded(server: Server, tmp_path: Path, data: bytes) -> None:
    server.data = data
    with pytest.raises(GgufError, match="not a GGUF file"):
        download(server.url + "/m.gguf", folder=tmp_path)
    assert server.nbytes == 0
    assert files(tmp_path) == []


# Whole


@pytest.fixture
def whole(server: Server) -> Server:
    """A server that sends only whole files."""
    server.ranges = False
    return server


def test_a_server_without_ranges_sends_the_whole_file(whole: Server, tmp_path: Path) -> None:
    whole.redirect = {"X-Linked-ETag": f'"{SHA256}"'}
    seen: list[int] = []
    path = download(whole.url + "/m.gguf", folder=tmp_path, progress=seen.append)
    assert (path.read_bytes(), sum(seen)) == (DATA, len(DATA))
    assert json.loads(path.with_name(path.name + ".json").read_text()) == {"size": len(DATA), "sha256": SHA256}
    whole.stop()
    assert download(whole.url + "/m.gguf", folder=tmp_path) == path
    assert len(files(tmp_path)) == 2


def test_a_file_of_unknown_length_is_whole_if_its_header_says_so(whole: Server, tmp_path: Path) -> None:
    whole.data, whole.length = write_gguf(tensors={"a": ("F32", (64,), None)}), False
    assert download(whole.url + "/m.gguf", folder=tmp_path).read_bytes() == whole.data
    whole.data = whole.data[:-4]
    with pytest.raises(SourceError, match=r"the connection dropped after 316 B, and this server cannot resume"):
        download(whole.url + "/other.gguf", folder=tmp_path)
    assert len(files(tmp_path)) == 2


def test_a_whole_file_that_breaks_off_is_not_kept(whole: Server, tmp_path: Path) -> None:
    whole.cut = 60_000
    with pytest.raises(SourceError, match=r"the connection dropped after 60\.0 kB, and this server cannot resume"):
        download(whole.url + "/m.gguf", folder=tmp_path)
    assert files(tmp_path) == []
    whole.cut = None
    assert download(whole.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("data", [b"<!DOCTYPE html>" + bytes(50_000), b"GGU", b""])
def test_a_whole_file_that_is_no_gguf_is_not_kept(whole: Server, tmp_path: Path, data: bytes) -> None:
    whole.data = data
    with pytest.raises(GgufError, match="not a GGUF file"):
        download(whole.url + "/m.gguf", folder=tmp_path)
    assert files(tmp_path) == []


def test_a_whole_file_with_another_digest_is_not_kept(whole: Server, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="damaged or a different file"):
        download(f"{whole.url}/m.gguf#sha256={'0' * 64}", folder=tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("length", [True, False])
def test_a_whole_file_must_fit_on_the_disk(
    whole: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: bool
) -> None:
    whole.length = length
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=90_000))
    with pytest.raises(SourceError, match=r"but only 90\.0 kB are free" if length else "which is too much"):
        download(whole.url + "/m.gguf", folder=tmp_path)
    assert files(tmp_path) == []


def test_a_whole_file_that_drips_is_given_up(whole: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "WINDOW", 0.05)
    monkeypatch.setattr(web, "SLOWEST", 1 << 40)
    whole.length = False
    with pytest.raises(SourceError, match="the server is too slow"):
        download(whole.url + "/m.gguf?drip", folder=tmp_path)
    assert files(tmp_path) == []


def test_a_whole_file_may_take_longer_than_a_window(
    whole: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "WINDOW", 0.05)
    monkeypatch.setattr(web, "SLOWEST", 0)
    assert download(whole.url + "/m.gguf?drip", folder=tmp_path).read_bytes() == DATA


def test_a_header_can_be_read_from_a_server_without_ranges(
    whole: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole.data = write_gguf({"general.name": "far away"})
    with Gguf.open(readable(whole.url + "/m.gguf")) as gguf:
        assert gguf.metadata == {"general.name": "far away"}
    whole.ranges = True
    assert readable(whole.url + "/m.gguf") == whole.url + "/m.gguf"
    assert readable(tmp_path) == tmp_path


# Refused, too


@pytest.mark.parametrize(
    "url", ["http://[", "file:///etc/passwd", "m.gguf", "http://", "http:///m.gguf", "http://a b/"]
)
def test_what_is_not_a_web_address_is_told(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceError):
        download(url, folder=tmp_path)
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be written"):
        download(server.url + "/m.gguf", folder=tmp_path / "file" / "models")


# Room


def test_a_disk_too_small_is_told_with_the_numbers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_and_fail(server, tmp_path, after=20_000)
    usage = type(module.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage(0, 0, 50_000))
    with pytest.raises(SourceError, match=r"needs 80\.0 kB more, but only 50\.0 kB are free"):
        download(server.url + "/m.gguf", folder=tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage(0, 0, 80_004))
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA


def test_a_disk_that_fills_up_keeps_the_part(server: Server, tmp_path: Path) -> None:
    with files_of_at_most(25_000), pytest.raises(SourceError, match=r"cannot grow: .* try again; the download resumes"):
        download(server.url + "/m.gguf", folder=tmp_path)
    assert next(tmp_path.glob("*.part")).read_bytes() == DATA[:25_000]
    server.served.clear()
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert server.served[0][0] == 25_000


# Two at once


def test_a_second_run_meanwhile_is_told_and_harms_nothing(server: Server, tmp_path: Path) -> None:
    server.gate.clear()
    paths: list[Path] = []
    first = threading.Thread(target=lambda: paths.append(download(server.url + "/m.gguf", folder=tmp_path)))
    first.start()
    assert server.reached.wait(5)
    with pytest.raises(SourceError, match=f"already being downloaded by process {os.getpid()} on"):
        download(server.url + "/m.gguf", folder=tmp_path)
    server.gate.set()
    first.join()
    assert paths[0].read_bytes() == DATA
    assert server.nbytes == len(DATA)
    assert files(tmp_path) == ["", ".json"]


def test_the_lock_a_killed_run_left_is_taken_over(server: Server, tmp_path: Path) -> None:
    start_and_fail(server, tmp_path, after=20_000)
    part = next(tmp_path.glob("*.part"))
    part.with_name(part.name.removesuffix(".part") + ".lock").write_text("12 elsewhere")
    assert download(server.url + "/m.gguf", folder=tmp_path).read_bytes() == DATA
    assert files(tmp_path) == ["", ".json"]


def test_a_redirect_to_nowhere_is_refused(server: Server, tmp_path: Path) -> None:
    server.redirect = {"Location": "http://[bad"}
    with pytest.raises(SourceError, match="redirects to something that is not a web address"):
        download(server.url + "/m.gguf", folder=tmp_path)


# Names


def test_a_password_is_in_no_file_and_no_message(server: Server, tmp_path: Path) -> None:
    secret = server.url.replace("http://", "http://me:secret@")
    server.limit = 35_000
    with pytest.raises(SourceError, match="503") as caught:
        download(secret + "/m.gguf", folder=tmp_path)
    assert "secret" not in str(caught.value)
    assert not [path for path in tmp_path.iterdir() if b"secret" in path.read_bytes() or "secret" in path.name]
    server.limit = None
    assert download(secret + "/m.gguf", folder=tmp_path) == download(server.url + "/m.gguf", folder=tmp_path)


@pytest.mark.parametrize("url", ["http://me:secret@h/#sha256=1", "http://me:secret@[", "http://me:secret@h/\ud800"])
def test_a_password_is_in_no_complaint_about_the_url(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceError) as caught:
        download(url, folder=tmp_path)
    assert "secret" not in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize(
    "path",
    [
        "/../../x",
        "/..%2f..%2fx.gguf",
        "/%2e%2e/%2e%2e/x",
        "/a/" + "long" * 1000 + ".gguf",
        "/模型/gemma ü.gguf",
        "/C:\\Windows\\x",
        "/",
        "/.",
        "/~/$(HOME)/`id`;&|*?<>.gguf",
        "/x%00y.gguf",
        "//etc/passwd",
    ],
)
def test_no_name_leaves_the_folder(server: Server, tmp_path: Path, path: str) -> None:
    folder = tmp_path / "deep" / "models"
    found = download(server.url + path, folder=folder)
    assert found.parent == folder
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{,130}-[0-9a-f]{16}\.gguf", found.name)
    assert ".." not in found.name
    assert found.read_bytes() == DATA
    assert [entry.name for entry in tmp_path.iterdir()] == ["deep"]
    assert download(server.url + path, folder=folder) == found


def test_a_name_tells_host_and_path_but_no_secrets() -> None:
    address, _ = module._parse("https://me:secret@models.example/org/Gemma-4_E2B.Q4_K_M.gguf?token=secret#x")
    name = module._file_name(address)
    assert re.fullmatch(r"models\.example-org-Gemma-4_E2B\.Q4_K_M-[0-9a-f]{16}\.gguf", name)


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "/far/cache"}, "/far/cache/wgemma/models"),
        ("linux", {"XDG_CACHE_HOME": "not/absolute"}, "/home/me/.cache/wgemma/models"),
        ("linux", {}, "/home/me/.cache/wgemma/models"),
        ("darwin", {"XDG_CACHE_HOME": "/far/cache"}, "/home/me/Library/Caches/wgemma/models"),
        ("win32", {"LOCALAPPDATA": "/far/local"}, "/far/local/wgemma/models"),
        ("win32", {}, "/home/me/AppData/Local/wgemma/models"),
    ],
)
def test_the_cache_is_where_the_system_keeps_its_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(folder)


def test_the_cache_is_the_folder_unless_another_is_given(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    assert download(server.url + "/m.gguf").parent == tmp_path / "cache"


def test_a_source_tells_its_validator(server: Server) -> None:
    assert HttpSource(server.url).validator == '"one"'
