"""Requests as bytes, which no client library would send: pipelined, cut, with two lengths, in pieces."""

import json
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from api_server import TINY, Api, serving
from fake_models import Garage
from wgemma.serve.settings import Settings

ASK = {"model": TINY, "messages": [{"role": "user", "content": "x"}]}


def request(path: str = "/v1/chat/completions", head: str = "", **fields: object) -> bytes:
    body = json.dumps({**ASK, **fields}).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{head}\r\n".encode() + body


def sent(api: Api, data: bytes, wait: float = 5) -> bytes:
    """All that comes back until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=wait) as connection:
        connection.sendall(data)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


@pytest.fixture
def garage() -> Garage:
    return Garage()


@pytest.fixture
def wire(garage: Garage) -> Iterator[Api]:
    with serving(Settings(slots=2), garage) as api:
        yield api


def test_pipelined_requests_are_answered_in_order(wire: Api) -> None:
    end = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    found = sent(wire, request() + request("/api/chat") + request("/api/embed", input="a") + end)
    assert found.count(b"HTTP/1.1 200") == 4
    kinds = (b"chat.completion", b'"done":true', b'"embeddings"', b'"status":"ok"')
    places = [found.index(kind) for kind in kinds]
    assert places == sorted(places)


def test_a_body_with_two_lengths_ends_the_connection(wire: Api) -> None:
    """What follows would be another request to us, and part of the body to a proxy."""
    hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found = sent(wire, request(head="Transfer-Encoding: chunked\r\n")[:-10] + b"\r\n0\r\n\r\n" + hidden)
    assert found.startswith(b"HTTP/1.1 400") and found.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("length", [1 << 27, 10**15, 10**16, 10**20 - 1])
def test_a_length_beyond_reason_is_refused_at_once(wire: Api, length: int) -> None:
    with socket.create_connection(("127.0.0.1", wire.port), timeout=5) as connection:
        connection.sendall(f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_what_is_no_request_is_refused(wire: Api) -> None:
    head = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    for data in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,  # TLS
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        f"{head}5\r\nContent-Length: 6\r\n\r\n123456".encode(),
        f"{head}-5\r\n\r\n".encode(),
        f"{head}{10**20}\r\n\r\n".encode(),
    ):
        assert sent(wire, data).startswith(b"HTTP/1.1 400")


def test_a_request_may_be_cut_anywhere(wire: Api, garage: Garage) -> None:
    data = request(stream=True)
    for end in range(0, len(data), 7):
        with socket.create_connection(("127.0.0.1", wire.port)) as connection:
            connection.sendall(data[:end])
    wire.wait(lambda: wire.service.inside == 0)
    assert wire.ask("/v1/chat/completions", ASK).status == 200 and garage.last.live == 0


def test_a_client_may_leave_at_any_moment(wire: Api, garage: Garage) -> None:
    """While it waits, while the model is loaded or unloaded, while it reads, at the end."""
    dice = random.Random(1)
    garage.attributes = {"words": 5, "pause": 0.002}
    for _ in range(150):
        connection = socket.create_connection(("127.0.0.1", wire.port))
        path = dice.choice(("/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"))
        fields: dict[str, Any] = {"stream": dice.random() < 0.7, "max_tokens": 9, "input": "x"}
        if dice.random() < 0.2:
            fields["keep_alive"] = 0
        if dice.random() < 0.1:
            fields["options"] = {"num_ctx": dice.choice((1000, 8000))}
        connection.sendall(request(path, **fields))
        time.sleep(dice.choice((0, 0, 0.001, 0.01, 0.02)))
        connection.close()
    models = wire.service.models
    wire.wait(lambda: wire.service.inside == 0 and not any(one.users for one in models._residents.values()))
    assert all(model.live == 0 for model in garage.loaded)
    assert wire.ask("/v1/chat/completions", ASK).status == 200
    wire.wait(lambda: len(garage.open) == 1)
