"""A real Chromium for the tests of the page, and a web server on loopback for it to talk to.

One browser serves all tests; the server remembers what is asked for, and can be told to misbehave.
"""

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import pytest

from wgemma.web.site import CSP, KINDS, Site

sys.path.append(str(Path(__file__).parent))  # for face.py and app_page.py

FLAGS = (
    "--enable-unsafe-webgpu",  # SwiftShader: WebGPU without a GPU
    "--disable-gpu-process-crash-limit",  # some tests kill it, and one crash too many switches WebGPU off
    # One test collects garbage at the worst moments; and compiling all of Python for every page takes seconds.
    "--js-flags=--expose-gc --wasm-lazy-compilation",
    "--no-sandbox",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class PageServer:
    """The site, an empty page at /empty.html, and files under /models/. It misbehaves as `cuts` and `gone` say."""

    def __init__(self) -> None:
        self.site = Site()
        self.models: dict[str, Any] = {}  # paths, or anything with a length that gives slices
        self.files: dict[str, Path] = {}  # of the tests' own
        self.cuts: dict[str, list[int]] = {}  # by model: after how many bytes each next answer is cut
        self.gone = False
        self.asked: list[tuple[str, str]] = []  # (path, Range)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a page that was closed hangs up
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def offer(self, path: Path) -> str:
        """The address of a file."""
        self.models[path.name] = path
        return f"/models/{path.name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0].removeprefix("/")
        self.asked.append((path, request.headers.get("Range", "")))
        if self.gone:
            request.close_connection = True
            return
        if path == "empty.html":
            self._send(request, b"<!doctype html><title>empty</title>", KINDS[".html"])
        elif path in self.files:
            self._send(request, self.files[path].read_bytes(), KINDS[self.files[path].suffix])
        elif path.removeprefix("models/") in self.models:
            self._send_model(request, path.removeprefix("models/"))
        elif path in self.site.assets:
            self._send(request, self.site.read(path)[0], self.site.assets[path].kind)
        else:
            request.send_error(404)

    def _send(self, request: BaseHTTPRequestHandler, body: bytes, kind: str) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.send_header("Content-Security-Policy", CSP)
        request.send_header("Cache-Control", "no-cache")
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    def _send_model(self, request: BaseHTTPRequestHandler, name: str) -> None:
        content = self.models[name]
        body = _Sliced(content) if isinstance(content, Path) else content
        start, stop = 0, len(body)
        if span := re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", "")):
            start, stop = int(span[1]), min(int(span[2] or stop - 1) + 1, stop)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(stop - start))
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("ETag", f'"{name} {len(body)}"')
        request.end_headers()
        if request.command != "GET":
            return
        cuts = self.cuts.get(name)
        sent = start + cuts.pop(0) if cuts else stop
        request.wfile.write(body[start : min(sent, stop)])
        if sent < stop:
            request.wfile.flush()
            sleep(0.2)  # a browser forgets what it has not handed on when a line is cut
            request.close_connection = True


class _Sliced:
    """A file as something with a length that gives slices."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def __getitem__(self, span: slice) -> bytes:
        with self._path.open("rb") as file:
            file.seek(span.start)
            return file.read(span.stop - span.start)


@pytest.fixture(scope="session")
def server() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium here")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def face(browser: Any, server: PageServer) -> Iterator[Any]:
    """A page with the module imported, and a Worker that outlives its models."""
    from face import Face

    page = browser.new_page()
    page.goto(f"{server.url}/empty.html")
    yield Face(page)
    page.close()


@pytest.fixture(scope="session")
def micro(server: PageServer, data: Path) -> str:
    """The address of a model that travels with the repository."""
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    server.models["micro.gguf"] = data / "ollama-store" / store["gemma4:tiny"]["model"]
    return "/models/micro.gguf"


@pytest.fixture(scope="session")
def lab(browser: Any, server: PageServer) -> Iterator[Callable[[str], Any]]:
    """Runs Python in a Worker, with nothing in between, and gives what its last expression says in JSON."""
    with open_lab(browser, server) as lab:
        yield lab


@pytest.fixture
def fresh_lab(browser: Any, server: PageServer) -> Iterator[Callable[[str], Any]]:
    """The same with a Python of its own."""
    with open_lab(browser, server) as lab:
        yield lab


@contextmanager
def open_lab(browser: Any, server: PageServer) -> Iterator[Callable[[str], Any]]:
    server.files["lab.js"] = Path(__file__).with_name("lab.js")
    page = browser.new_page()
    page.goto(f"{server.url}/empty.html")
    page.evaluate("() => { globalThis.lab = new Worker('/lab.js', {type: 'module'}); }")

    def run(code: str) -> Any:
        script = "(code) => new Promise((done) => { lab.onmessage = ({data}) => done(data); lab.postMessage(code); })"
        told = page.evaluate(script, code)
        assert "error" not in told, told
        return json.loads(told["value"])

    yield run
    page.close()


@pytest.fixture
def visit(browser: Any, server: PageServer) -> Iterator[Callable[..., Any]]:
    """Opens the page people chat with in a browser that knows nothing yet; `script=False` leaves the engine in it."""
    from app_page import visits

    with visits(browser, server.url) as visit:
        yield visit


@pytest.fixture
def kill_gpu(browser: Any) -> Callable[[], None]:
    """Ends the browser's GPU process, as a driver that crashes does."""

    def kill() -> None:
        running = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
        (gpu,) = (process["id"] for process in running if process["type"] == "GPU")
        os.kill(gpu, signal.SIGKILL)

    return kill
