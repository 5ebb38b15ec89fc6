"""The socket and the server on it, until Ctrl-C or a signal: then no new requests, the open ones, and the models."""

import errno
import logging
import socket
from dataclasses import replace
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from wgemma.errors import Error
from wgemma.web.limits import LimitedProtocol, Limits

TRIES = 20


class Protocol(LimitedProtocol):
    """A client that reads nothing for a minute is dropped; meanwhile its stream pauses."""

    limits = replace(Limits(), connections=2048, pause=75)


class Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # connections cut from here on are intended
        super().handle_exit(sig, frame)


def make_server(app: ASGIApp, drain: int, protocol: type[LimitedProtocol] = Protocol) -> Server:
    """`drain`: how many seconds open requests have when the server ends."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=protocol.limits.pause,
        timeout_graceful_shutdown=drain,
    )
    return Server(config)


def listen(host: str, port: int, *, exactly: bool) -> socket.socket:
    """A socket on that port, or, unless it must be `exactly` that one, on the first free one after it."""
    try:
        family, *_, (found, *_) = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise Error(f"{host}: no such address. 127.0.0.1 is this machine.") from None
    trouble = OSError()
    for candidate in (port,) if exactly or not port else range(port, min(port + TRIES, 1 << 16)):
        try:
            return socket.create_server((str(found), candidate), family=family, backlog=512)
        except OSError as error:
            trouble = error
    if trouble.errno == errno.EADDRNOTAVAIL:
        raise Error(f"{host} is not an address of this machine. 127.0.0.1 always is.")
    why = "another program is using it" if trouble.errno == errno.EADDRINUSE else trouble.strerror
    raise Error(f"cannot listen on port {port} of {host}: {why}. Choose another --port.")
