"""A client that keeps the server waiting is dropped, and one that does not is not."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from wgemma.web.limits import LimitedProtocol, Limits
from wgemma.web.listening import make_server

PATIENCE = 10.0  # seconds, for a busy machine; what is dropped is dropped after a fraction of one
BIG = 64 << 20
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class Small(LimitedProtocol):
    limits = Limits(head=0.3, stall=0.5, connections=3)


class Talk:
    """An ASGI app: GET / says hello, /big sends much, /slow takes its time, and a POST is read first."""

    def __init__(self) -> None:
        self.over = threading.Event()  # the last response came to its end

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = False
        if scope["method"] == "POST" and scope["path"] == "/":
            while (message := await receive()).get("more_body"):
                pass
            gone = message["type"] == "http.disconnect"
        if scope["path"] == "/slow":
            await asyncio.sleep(2.5 * Small.limits.stall)
        if not gone:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(BIG >> 20 if scope["path"] == "/big" else 0):
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            await send({"type": "http.response.body", "body": b"hello"})
        self.over.set()


@contextmanager
def serving(app: Any) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections to `app`, with small limits."""
    server = make_server(app, Small)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield lambda: socket.create_connection(address, timeout=PATIENCE)
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def connect() -> Iterator[Callable[[], socket.socket]]:
    with serving(Talk()) as connect:
        yield connect


def rest(line: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    pieces = []
    with suppress(ConnectionError):
        while piece := line.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def drip(line: socket.socket, start: bytes, unit: bytes) -> bytes:
    """Sends `start`, then a little at a time until the server hangs up; what it said."""
    line.sendall(start)
    line.settimeout(0.03)
    deadline = time.monotonic() + PATIENCE
    said = b""
    with suppress(ConnectionError):
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                if not (piece := line.recv(65536)):
                    return said
                said += piece
                continue
            line.sendall(unit)
    assert time.monotonic() < deadline, "the server went on listening"
    return said


def test_a_client_that_says_nothing_is_dropped(connect: Callable[[], socket.socket]) -> None:
    with connect() as line:
        assert rest(line) == b""


@pytest.mark.parametrize("start", [b"", HEAD + b"X: "], ids=["request line", "headers"])
def test_a_head_that_comes_byte_by_byte_is_dropped(connect: Callable[[], socket.socket], start: bytes) -> None:
    with connect() as line:
        assert drip(line, start, b"G") == b""


def test_so_is_the_head_of_a_second_request(connect: Callable[[], socket.socket]) -> None:
    with connect() as line:
        line.sendall(HEAD + b"\r\n")
        assert b"200 OK" in line.recv(65536)
        assert b"200 OK" not in drip(line, HEAD + b"X: ", b"y")


def test_a_body_nobody_waits_for_is_dropped(connect: Callable[[], socket.socket]) -> None:
    with connect() as line:
        said = drip(line, b"POST /now HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n", b"x")
        assert b"hello" in said


def test_a_body_that_stops_coming_is_dropped(connect: Callable[[], socket.socket]) -> None:
    with connect() as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf")
        assert rest(line) == b""


def test_a_body_that_keeps_coming_is_read(connect: Callable[[], socket.socket]) -> None:
    with connect() as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\nConnection: close\r\n\r\n")
        line.settimeout(0.1)
        for _ in range(15):  # three times as long as a stall, and longer than a head may take
            with suppress(TimeoutError):
                line.recv(1)
            line.sendall(b"x")
        line.settimeout(PATIENCE)
        assert b"hello" in rest(line)


def test_a_client_that_stops_taking_what_it_asked_for_is_dropped() -> None:
    app = Talk()
    with serving(app) as connect, connect() as line:
        line.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(12) == b"HTTP/1.1 200"
        assert app.over.wait(PATIENCE)
        assert len(rest(line)) < BIG


def test_a_client_that_takes_little_at_a_time_gets_all(connect: Callable[[], socket.socket]) -> None:
    pause = threading.Event()
    with connect() as line:
        line.sendall(b"GET /big HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        taken = 0
        for _ in range(12):  # three times as long as a stall
            pause.wait(0.125)
            taken += len(line.recv(1 << 20))
        assert taken + len(rest(line)) > BIG


def test_a_slow_answer_is_waited_for(connect: Callable[[], socket.socket]) -> None:
    with connect() as line:
        line.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert rest(line).endswith(b"hello\r\n0\r\n\r\n")


def test_connections_beyond_the_limit_are_refused_until_one_ends() -> None:
    with serving(Talk()) as connect:
        lines = [connect() for _ in range(3)]
        for line in lines:
            line.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with connect() as fourth:
            assert b"503 Service Unavailable" in rest(fourth)
        assert all(b"hello" in rest(line) for line in lines)
        with connect() as fifth:
            fifth.sendall(HEAD + b"\r\n")
            assert b"200 OK" in fifth.recv(65536)
