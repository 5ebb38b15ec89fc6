"""The API server in a thread of its own, on a free port of 127.0.0.1, and a client that normalises nothing."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from wgemma.serve.app import make_app
from wgemma.serve.listening import Protocol, make_server
from wgemma.serve.models import Load, load_files
from wgemma.serve.service import Service
from wgemma.serve.settings import Settings
from wgemma.web.limits import LimitedProtocol

TINY = "wgemma-tiny"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode("ascii")  # what is not ASCII would be a mistake


@dataclass(frozen=True)
class Api:
    """A running server."""

    port: int
    service: Service
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(
        self, path: str, body: Any = None, method: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request. A `body` that is not bytes is sent as JSON; headers replace the usual ones."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        connection = self.connect()
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def wait(self, condition: Any, seconds: float = 10) -> None:
        """Waits until a condition of the server is true."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it never came true"
            time.sleep(0.005)


@contextmanager
def serving(
    settings: Settings | None = None, load: Load = load_files, protocol: type[LimitedProtocol] = Protocol
) -> Iterator[Api]:
    """A server until the end of the block."""
    started: dict[str, Any] = {}
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        async def main() -> None:
            started["loop"] = asyncio.get_running_loop()
            started["service"] = service = Service(settings or Settings(), load)
            started["server"] = server = make_server(make_app(service), 5, protocol)
            await server.serve(sockets=[listening])

        asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    while "server" not in started or not started["server"].started:
        time.sleep(0.005)
    try:
        yield Api(listening.getsockname()[1], started["service"], started["loop"])
    finally:
        started["server"].should_exit = True
        thread.join(20)
        assert not thread.is_alive()
