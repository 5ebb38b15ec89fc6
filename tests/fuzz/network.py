"""URLs, and what web servers answer."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any
from unittest.mock import patch

from fuzz.harness import Reader
from fuzz.mutation import ODD_TEXT, mutate
from wgemma.files.download import download
from wgemma.files.locate import locate
from wgemma.files.sources import HttpSource, is_url
from wgemma.sync import run

NOBODY = "127.0.0.1:9"  # refuses at once
PARTS = (
    *("http://", "https://", "HTTP:", "//", "/", NOBODY, "host", "[::1]", "[bad", "]", ":99999", ":x", "user:pw@", "@"),
    *("a.gguf", "#sha256=", "a" * 64, "?", "&", "%00", "%zz", "\\", "\n", "é", "..", *ODD_TEXT),
)
HEADERS = (
    *("Content-Range: bytes 0-0/100", "Content-Range: bytes 0-0/" + "9" * 30, "Content-Range: bytes x-y/z"),
    *("Content-Length: 1", "Content-Length: -1", "Content-Length: x", "Transfer-Encoding: chunked"),
    *("Location: http://[bad", "Location: file:///etc/passwd", "Location: /again", "Location: //\0", 'ETag: "x"'),
    *("Last-Modified: never", "X: " + "y" * 70_000, ": nothing", "no colon", "Set-Cookie: \x80\xff"),
)
STATUSES = (
    "206 Partial",
    "200 OK",
    "301 Moved",
    "302 Found",
    "307 Again",
    "404 No",
    "416 Range",
    "500 Oh",
    "99 x",
    "é",
)


@contextmanager
def answering() -> Iterator[tuple[str, list[bytes]]]:
    """A server on loopback that answers every request with the bytes in the list."""
    answer, listener = [b""], socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    connection.sendall(answer[0])
                except OSError:
                    pass

    thread = Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/model.gguf", answer
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextmanager
def offline() -> Iterator[None]:
    """No name resolves; numeric addresses do."""
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **kinds: Any) -> Any:
        return real(host, port, *args, **{**kinds, "flags": socket.AI_NUMERICHOST})

    with patch("socket.getaddrinfo", look_up):
        yield


@contextmanager
def readers(scratch: Path) -> Iterator[list[Reader]]:
    def make_url(dice: Random) -> str:
        return "http://" * (dice.random() < 0.6) + "".join(dice.choices(PARTS, k=dice.randrange(1, 9)))

    def examine_url(url: str) -> str:
        if not is_url(url):
            locate(url + ".gguf")
            return "located"
        download(url, folder=scratch / "cache")
        return "downloaded"

    def make_answer(dice: Random) -> bytes:
        status = STATUSES[0] if dice.random() < 0.5 else dice.choice(STATUSES)
        lines = [f"HTTP/1.1 {status}", HEADERS[0], *dice.choices(HEADERS, k=dice.randrange(6)), "", "GGUF"]
        data = "\r\n".join(lines).encode("latin-1")
        return mutate(data, dice) if dice.random() < 0.3 else data

    with answering() as (address, answer), offline():

        def examine_answer(data: bytes) -> str:
            answer[0] = data
            source = HttpSource(address, timeout=1.0, attempts=1)
            run(source.read(0, 1))
            return "read"

        yield [Reader("URL", 30, make_url, examine_url), Reader("server", 20, make_answer, examine_answer)]
