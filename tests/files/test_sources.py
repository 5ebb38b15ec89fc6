"""Any span of a file, memory or web server is read exactly, or raises a clear error."""

import os
import shutil
import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from gguf_writer import write_gguf
from range_server import Answer, good, send, serve
from wgemma import Gguf, SourceError
from wgemma.files import sources, web
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
    monkeypatch.setattr("wgemma.files.sources.time", SimpleNamespace(sleep=slept.append))
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


@pytest.mark.parametrize("target", [5, None, ["x"], {}])
def test_what_is_no_source_is_refused_in_a_sentence(target: object) -> None:
    with pytest.raises(SourceError, match="is not a path"):
        open_source(target)


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
        HttpSource(url)


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
def test_an_http_error_is_told(code: int, words: str, naps: list[float]) -> None:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        request.send_error(code)

    with serve(answer) as url, pytest.raises(SourceError, match=f"the server answered {words}"):
        open_source(url)


@pytest.mark.parametrize("code", [429, 503])
def test_a_busy_server_is_asked_again(code: int, naps: list[float]) -> None:
    asked = count()

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        if next(asked) in (0, 1, 3):
            request.send_error(code)
        else:
            good(DATA)(request, start, stop)

    with serve(answer) as url:
        assert read(open_source(url), 500, 9_000) == DATA[500:9_500]
    assert len(naps) == 3


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
        with pytest.raises(SourceError, match=r"cannot be reached: 127\.0\.0\.1 does not answer"):
            HttpSource(url, timeout=0.05)


def test_a_server_that_speaks_no_tls_is_told() -> None:
    with serve(good(DATA)) as url, pytest.raises(SourceError, match=r"127\.0\.0\.1 does not speak TLS as it should"):
        HttpSource(url.replace("http:", "https:"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs a certificate")
def test_a_certificate_nobody_vouches_for_is_told(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["-nodes", "-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", *made], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with suppress(OSError):  # the test is over
                while connection := server.accept()[0]:
                    asked.append(1)
                    with connection, suppress(OSError):
                        context.wrap_socket(connection, server_side=True)

        thread = Thread(target=greet)
        thread.start()
        with pytest.raises(
            SourceError, match=r"the certificate of 127\.0\.0\.1 is not valid: self.signed.*set SSL_CERT_FILE"
        ):
            HttpSource(f"https://127.0.0.1:{server.getsockname()[1]}/x.gguf")
        server.shutdown(socket.SHUT_RDWR)  # wakes it
        thread.join()
    assert asked == [1]  # asking again would not help


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


def test_what_a_url_holds_besides_its_address_goes_to_its_server_only() -> None:
    logins = []

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        logins.append(request.headers["Authorization"])
        send(request, start, DATA[start:stop], len(DATA))

    with serve(answer) as url:
        source = HttpSource(url.replace("http://", "http://me:top%20secret@"))
        assert read(source, 0, 10) == DATA[:10]
    assert logins == ["Basic bWU6dG9wIHNlY3JldA=="] * 2
    assert source.name == url


@pytest.mark.parametrize(
    "url",
    [
        "http://me:secret@127.0.0.1:1/m.gguf",
        "http://me:secret@[/m.gguf",
        "http://me:secret@127.0.0.1:bad/m.gguf",
        "http://me:secret@127.0.0.1:0/m.gguf",
        f"http://me:secret@{'a' * 70}.example/m.gguf",
        "http://me:secret@127.0.0.1/\n",
        "http://me:secret@ü\ud800/m.gguf",
    ],
)
def test_a_password_is_in_no_message(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_source(url)
    assert "secret" not in str(caught.value)
    str(caught.value).encode()


# -- slow servers


def drip(request: BaseHTTPRequestHandler, data: bytes, clock: list[float]) -> None:
    """Sends byte after byte, each a minute after the one before, until the other side has had enough."""
    with suppress(OSError):
        for byte in data:
            request.wfile.write(bytes([byte]))
            request.wfile.flush()
            clock[0] += 60
            request.connection.settimeout(0.05)
            with suppress(TimeoutError):
                if not request.connection.recv(1):
                    break
    request.close_connection = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as a pace sees it."""
    now = [0.0]
    monkeypatch.setattr("wgemma.files.web.time", SimpleNamespace(monotonic=lambda: now[0]))  # only there
    return now


@pytest.mark.parametrize("where", ["status", "headers", "body", "chunks"])
def test_a_server_that_drips_is_given_up(where: str, clock: list[float]) -> None:
    requests = count()

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        if next(requests) == 0:
            return send(request, start, DATA[start:stop], len(DATA))
        head = f"HTTP/1.1 206 x\r\nContent-Range: bytes {start}-{stop - 1}/{len(DATA)}\r\n"
        sent = {
            "status": "",
            "headers": head + "X: ",
            "body": head + "\r\n",
            "chunks": head + "Transfer-Encoding: chunked\r\n\r\n",
        }[where]
        request.wfile.write(sent.encode())
        return drip(request, b"0" * 1000, clock)

    with serve(answer) as url:
        source = HttpSource(url)
        with pytest.raises(SourceError, match=r"too slow: \d+ bytes in \d+ seconds\. Try again later"):
            read(source, 0, 5000)


def test_a_server_that_sends_a_byte_per_request_is_given_up(clock: list[float]) -> None:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        clock[0] += 20
        send(request, start, DATA[start:stop], len(DATA), sent=1)

    with serve(answer) as url:
        source = HttpSource(url)
        with pytest.raises(SourceError, match="too slow"):
            read(source, 0, 5000)


def test_a_slow_server_that_keeps_the_pace_is_read(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr(web, "SLOWEST", 1)

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        clock[0] += 100
        send(request, start, DATA[start:stop], len(DATA), sent=1000)

    with serve(answer) as url:
        assert read(HttpSource(url), 0, len(DATA)) == DATA


# -- redirects and malformed answers


def redirect(place: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        if request.path != "/model.gguf":
            return send(request, start, DATA[start:stop], len(DATA))
        request.send_response(302)
        request.send_header("Location", place)
        return request.end_headers()

    return answer


@pytest.mark.parametrize("place", ["/storage", "storage?a=b", "//127.0.0.1:PORT/storage", "/speicher ü", "/x#y"])
def test_a_redirect_on_the_same_machine_is_followed(place: str) -> None:
    target = [place]
    with serve(lambda *request: redirect(target[0])(*request)) as url:
        target[0] = place.replace("PORT", str(urlsplit(url).port))
        assert read(open_source(url), 10, 10) == DATA[10:20]


@pytest.mark.parametrize(
    "place",
    [
        "http://[bad", "http://[::1", "file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x",
        "http://127.0.0.1:99999/x", "http://127.0.0.1:0/x", "javascript:1", f"http://{'a' * 70}.example/",
    ],
)  # fmt: skip
def test_a_redirect_to_something_else_than_the_web_is_refused(place: str) -> None:
    with serve(redirect(place)) as url, pytest.raises(SourceError, match="redirects to something"):
        open_source(url)


def test_a_redirect_in_a_circle_is_given_up() -> None:
    with serve(redirect("/model.gguf")) as url, pytest.raises(SourceError, match="redirects more than 10 times"):
        open_source(url)


@pytest.mark.parametrize("place", ["http://localhost:1/x", "http://10.0.0.1/x", "http://[::ffff:127.0.0.1]/x"])
def test_a_redirect_from_the_internet_into_the_own_network_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = web.nearness
    monkeypatch.setattr(web, "nearness", lambda host: 0 if host == "127.0.0.1" else real(host))
    with serve(redirect(place)) as url, pytest.raises(SourceError, match="an address in your own network"):
        open_source(url)


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("93.184.216.34", 0),
        ("2606:2800:220:1:248:1893:25c8:1946", 0),
        ("10.1.2.3", 1),
        ("172.16.0.1", 1),
        ("192.168.0.1", 1),
        ("100.64.0.1", 1),
        ("fd00::1", 1),
        ("127.0.0.1", 2),
        ("127.1", 2),
        ("0x7f000001", 2),
        ("localhost", 2),
        ("0.0.0.0", 2),
        ("::", 2),
        ("::1", 2),
        ("169.254.169.254", 2),
        ("fe80::1", 2),
        ("::ffff:127.0.0.1", 2),
        ("::ffff:10.0.0.1", 1),
    ],
)
def test_how_near_a_host_is(host: str, near: int) -> None:
    assert web.nearness(host) == near


@pytest.mark.parametrize(
    "reply",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 99999 x\r\n\r\n",
        b"HTTP/9.9 206 x\r\n\r\n",
        b"\xff" * 70_000,
        b"HTTP/1.1 206 x\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 206 x\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 206 x\r\nContent-Range: bytes 0-0/\xff\r\n\r\n",
        b"HTTP/1.1 206 x\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 206 x\r\nContent-Length: 9x\r\n\r\n",
        b"HTTP/1.1 302 x\r\nLocation: \xff\xfe://\x80\r\n\r\n",
        b"HTTP/1.1 302 x\r\n\r\n",
        b"HTTP/1.1 404 \x1b[31mred\r\n\r\n",
        b"HTTP/1.1 299 x\r\n\r\n",
    ],
)
def test_a_malformed_answer_is_refused_in_a_sentence(reply: bytes) -> None:
    with serve(raw(reply)) as url, pytest.raises(SourceError) as caught:
        open_source(url)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 300


def raw(reply: bytes) -> Answer:
    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        request.wfile.write(reply)
        request.close_connection = True

    return answer


@pytest.mark.parametrize(
    "body", [b"zz\r\nab", b"-5\r\nab", b"f" * 70_000, b"5", b"5\r\nabc", b"0\r\n\r\n", b"1" * 5000 + b"\r\nab"]
)
def test_malformed_chunks_are_given_up(body: bytes, naps: list[float]) -> None:
    requests = count()

    def answer(request: BaseHTTPRequestHandler, start: int, stop: int) -> None:
        if next(requests) == 0:
            return send(request, start, DATA[start:stop], len(DATA))
        span = f"bytes {start}-{stop - 1}/{len(DATA)}"
        head = f"HTTP/1.1 206 x\r\nContent-Range: {span}\r\nTransfer-Encoding: chunked\r\n\r\n"
        return raw(head.encode() + (body if start == 0 else b""))(request, start, stop)

    with serve(answer) as url:
        source = HttpSource(url, attempts=2)
        with pytest.raises(SourceError, match="no data after 2 tries"):
            read(source, 0, 5000)
