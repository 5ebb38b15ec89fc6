"""A socket, and uvicorn on it until Ctrl-C or a signal."""

import errno
import logging
import socket
from collections.abc import Iterable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from wgemma.errors import Error
from wgemma.web.limits import LimitedProtocol


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # connections cut from here on are intended
        super().handle_exit(sig, frame)


def make_server(app: ASGIApp, protocol: type[LimitedProtocol], drain: int = 1, *, lifespan: bool = False) -> Server:
    """`drain`: how many seconds open requests have when the server ends; `lifespan`: whether the app is told of it."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on" if lifespan else "off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=protocol.limits.pause,
        timeout_graceful_shutdown=drain,
    )
    return Server(config)


def listen(host: str, ports: Iterable[int]) -> socket.socket:
    """A socket on the first of these ports that is free; 0 is any."""
    try:
        family, *_, (found, *_) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise Error(f"{host}: no such address. 127.0.0.1 is this machine.") from None
    first, trouble = None, OSError()
    for port in ports:
        first = port if first is None else first
        try:
            return socket.create_server((str(found), port), family=family, backlog=512)
        except OSError as error:
            trouble = error
    if trouble.errno == errno.EADDRNOTAVAIL:
        raise Error(f"{host} is not an address of this machine. 127.0.0.1 always is.")
    why = "another program is using it" if trouble.errno == errno.EADDRINUSE else trouble.strerror
    raise Error(f"cannot listen on port {first} of {host}: {why}. Choose another --port.")
