"""Any span of a file, memory or web server is read exactly, or raises a clear error."""

import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from range_server import good, send, serve
from wgemma import Gguf, SourceError
from wgemma.files import sources
from wgemma.files.sources import FileSource, HttpSource, MemorySource, Source, open_source
from wgemma.sync import run

DATA = bytes(i * 7 % 251 for i in range(10_000))


def read(source: Source, offset: int, length: int) -> bytes:
    return bytes(run(source.read(offset, length)))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the source would have slept between tries, without really sleeping."""
    slept: list[float] = []
    monkeypatch.setattr("wgemma.files.sources.time.sleep", slept.append)
    return slept


# -- every source


@pytest.fixture(params=["memory", "file", "http"])
def source(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    if request.param == "memory":
        yield open_source(DATA)
    elif request.param == "file":
        path = tmp_path / "data"
        path.write_bytes(DATA)
        yield open_source(path)
    else:
        with serve(good(DATA)) as url:
            yield open_source(url)


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 1), (0, 10_000), (9_999, 1), (10_000, 0), (1234, 4321)])
def test_a_span_is_exact(source: Source, offset: int, length: int) -> None:
    assert source.size == len(DATA)
    assert read(source, offset, length) == DATA[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(0, 10_001), (10_000, 1), (2**63, 1), (-1, 1), (5, -1)])
def test_a_span_outside_is_refused(source: Source, offset: int, length: int) -> None:
    with pytest.raises(SourceError, match="were requested, but there are only 10000"):
        read(source, offset, length)


def test_an_open_source_is_taken_as_it_is() -> None:
    source = MemorySource(DATA)
    assert open_source(source) is source


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_bytes_of_every_kind_are_memory(wrap: type) -> None:
    assert isinstance(open_source(wrap(DATA)), MemorySource)


# -- files


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nowhere\.gguf: no such file"):
        open_source(str(tmp_path / "nowhere.gguf"))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not a regular file"):
        open_source(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_nobody_writes_to_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is not a regular file"):
        open_source(tmp_path / "pipe")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/random", "/dev/null"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(SourceError, match="is not a regular file"):
        open_source(device)


@pytest.mark.skipif(not Path("/sys/kernel/uevent_seqnum").exists(), reason="needs sysfs")
def test_a_file_with_fewer_bytes_than_the_system_says_is_refused() -> None:
    source = open_source("/sys/kernel/uevent_seqnum")
    with pytest.raises(SourceError, match="shorter than before"):
        read(source, 0, source.size)


@pytest.mark.parametrize("own_position", [True, False])
def test_a_file_that_shrinks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_position: bool) -> None:
    if not own_position:
        monkeypatch.setattr(sources, "_read_into", sources._seek_and_read)
    path = tmp_path / "data"
    path.write_bytes(DATA)
    source = FileSource(path)
    os.truncate(path, 5000)
    assert read(source, 4000, 1000) == DATA[4000:5000]
    with pytest.raises(SourceError, match=r"data is shorter than before: it changed while in use\. Load it again\.$"):
        read(source, 4500, 1000)


def test_a_model_whose_file_shrinks_fails_with_a_sentence(tmp_path: Path) -> None:
    """In a process of its own: with a mapped file it would die of SIGBUS."""
    script = """if True:
        import os, shutil, sys, wgemma
        from wgemma.embedded import embedded_model
        shutil.copy(embedded_model(), sys.argv[1])
        model = wgemma.load(sys.argv[1], device="reference")
        os.truncate(sys.argv[1], 1 << 20)
        try:
            list(model.generate("a", max_tokens=1))
        except wgemma.SourceError as error:
            sys.exit(str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.gguf")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "m.gguf is shorter than before" in done.stderr


def test_a_file_nobody_closes_is_closed_with_its_source(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    source = FileSource(path)
    handle = source._handle
    del source
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "n" * 5000, "http:/x", "//[x"])
def test_a_name_no_file_can_have_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(SourceError):
        open_source(name)


def test_an_empty_file_has_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch()
    source = open_source(path)
    assert (source.size, read(source, 0, 0)) == (0, b"")


def test_a_closed_file_gives_nothing_more_but_spans_in_hand_stay_good(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    source = FileSource(path)
    span = run(source.read(100, 50))
    source.close()
    assert bytes(span) == DATA[100:150]
    with pytest.raises(SourceError):
        read(source, 0, 1)


# -- web servers


def test_a_model_is_opened_over_http_by_its_header_and_single_tensors() -> None:
    weights = bytes(range(256)) * 4096
    data = write_gguf({"general.name": "far away"}, {"a": ("I8", (1 << 20,), weights), "b": ("F32", (2,), b"fourfive")})
    asked = []

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        asked.append(stop - start)
        send(request, start, data[start:stop], len(data))

    with serve(answer) as url:
        HttpSource.first_read, before = 256, HttpSource.first_read
        try:
            opened = Gguf.open(url)
        finally:
            HttpSource.first_read = before
        assert opened.metadata == {"general.name": "far away"}
        assert sum(asked) < 1000
        assert opened.read("b") == b"fourfive"
        assert opened.read("a") == weights


def test_a_server_that_ignores_range_is_refused_before_it_sends_everything() -> None:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(1 << 40))
        request.end_headers()
        request.wfile.write(DATA)

    with serve(answer) as url, pytest.raises(SourceError, match=r"ignores Range requests.*Download the file"):
        open_source(url)


@pytest.mark.parametrize(
    "claim", ["bytes 5-5/10000", "bytes 0-0/*", "bytes 0-0/-5", "items 0-0/9", "", "bytes 0-0/" + "9" * 5000]
)
def test_an_answer_for_another_span_is_refused(claim: str) -> None:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        request.send_response(206)
        request.send_header("Content-Range", claim)
        request.send_header("Content-Length", "1")
        request.end_headers()
        request.wfile.write(b"x")

    with serve(answer) as url, pytest.raises(SourceError, match="a different span than requested"):
        open_source(url)


@pytest.mark.parametrize(
    ("code", "words"), [(404, "404 Not Found"), (403, "403 Forbidden"), (416, "416"), (500, "500")]
)
def test_an_http_error_is_told(code: int, words: str) -> None:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        request.send_error(code)

    with serve(answer) as url, pytest.raises(SourceError, match=f"the server answered {words}"):
        open_source(url)


def test_a_connection_cut_midway_is_taken_up_where_it_broke(naps: list[float]) -> None:
    starts = []

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        starts.append(start)
        send(request, start, DATA[start:stop], len(DATA), sent=3000)

    with serve(answer) as url:
        assert read(open_source(url), 500, 9_000) == DATA[500:9_500]
    assert starts == [0, 500, 3500, 6500]
    assert naps == []


def test_a_connection_closed_without_an_answer_is_tried_again(naps: list[float]) -> None:
    requests = count()

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        if next(requests) in (1, 2):
            request.connection.shutdown(socket.SHUT_RDWR)
            request.close_connection = True
        else:
            send(request, start, DATA[start:stop], len(DATA))

    with serve(answer) as url:
        assert read(open_source(url), 0, 100) == DATA[:100]
    assert len(naps) == 2


def test_a_server_that_never_sends_again_is_given_up(naps: list[float]) -> None:
    requests = count()

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        send(request, start, DATA[start:stop], len(DATA), sent=None if next(requests) == 0 else 0)

    with serve(answer) as url:
        source = HttpSource(url, attempts=3)
        with pytest.raises(SourceError, match=r"no data after 3 tries.*Check the connection"):
            read(source, 0, 100)
    assert len(naps) == 2


def test_a_server_that_is_gone_is_told(naps: list[float]) -> None:
    with serve(good(DATA)) as url:
        source = HttpSource(url, attempts=2)
    with pytest.raises(SourceError, match="no data after 2 tries"):
        read(source, 0, 100)
    with pytest.raises(SourceError, match="cannot be reached"):
        open_source(url)


def test_a_server_that_hangs_up_on_the_first_question_is_told() -> None:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        request.connection.shutdown(socket.SHUT_RDWR)
        request.close_connection = True

    with serve(answer) as url, pytest.raises(SourceError, match="cannot be reached"):
        open_source(url)


def test_a_server_that_says_nothing_runs_into_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.gguf"
        with pytest.raises(SourceError, match="cannot be reached: timed out"):
            HttpSource(url, timeout=0.05)


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_a_file_that_changes_on_the_server_is_noticed(header: str) -> None:
    versions = count()

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        send(request, start, DATA[start:stop], len(DATA), headers={header: f'"{next(versions)}"'})

    with serve(answer) as url, pytest.raises(SourceError, match="changed on the server during the download"):
        read(open_source(url), 0, 100)


def test_a_file_that_changes_its_size_is_noticed() -> None:
    sizes = count(len(DATA))

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        send(request, start, DATA[start:stop], next(sizes))

    with serve(answer) as url, pytest.raises(SourceError, match="changed its size"):
        read(open_source(url), 0, 100)


def test_a_server_that_sends_too_much_is_cut_to_the_span() -> None:
    with serve(lambda request, start, stop: send(request, start, DATA[start:], len(DATA))) as url:
        assert read(open_source(url), 10, 20) == DATA[10:30]


def test_offsets_past_four_gibibytes_are_asked_for_exactly() -> None:
    def pattern(start: int, stop: int) -> bytes:
        return b"".join(n.to_bytes(8, "little") for n in range(start // 8, stop // 8 + 1))[start % 8 :][: stop - start]

    size = 9 << 30
    with serve(lambda request, start, stop: send(request, start, pattern(start, stop), size)) as url:
        source = open_source(url)
        assert source.size == size
        for offset in ((1 << 32) - 3, (1 << 32) + 5, size - 17):
            assert read(source, offset, 17) == pattern(offset, offset + 17)


@pytest.mark.parametrize(
    "url", ["http://[::1/x.gguf", "http:///x.gguf", "http://127.0.0.1:99999999/x", "http://host/ü \n"]
)
def test_a_url_that_is_none_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(SourceError):
        open_source(url)


def test_only_the_web_is_a_url() -> None:
    with pytest.raises(SourceError, match="only http and https are supported"):
        HttpSource("file:///etc/passwd")
