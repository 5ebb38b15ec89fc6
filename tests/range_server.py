"""Web servers on 127.0.0.1 for tests: well-behaved by default, and as badly behaved as `answer` makes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler, int, int], None]


@contextmanager
def serve(answer: Answer) -> Iterator[str]:
    """A server's URL; `answer(request, start, stop)` replies to one request for the bytes [start, stop)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            answer(self, int(first), int(last) + 1)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/model.gguf"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def send(
    request: BaseHTTPRequestHandler,
    start: int,
    body: bytes,
    total: int | str,
    *,
    sent: int | None = None,
    headers: dict[str, str] | None = None,
) -> None:
    """A proper 206 for `body`; only the first `sent` bytes of it leave before the line is cut."""
    request.send_response(206)
    request.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{total}")
    request.send_header("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body[:sent])
    request.close_connection = True


def good(data: bytes) -> Answer:
    return lambda request, start, stop: send(request, start, data[start:stop], len(data))
