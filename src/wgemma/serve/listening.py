"""How the server runs and ends: no new requests, then the open ones, then the models."""

from dataclasses import replace

from starlette.types import ASGIApp

from wgemma.web import listening
from wgemma.web.limits import LimitedProtocol, Limits


class Protocol(LimitedProtocol):
    """A client that reads nothing for a minute is dropped; meanwhile its stream pauses."""

    limits = replace(Limits(), connections=2048, pause=75)


def make_server(app: ASGIApp, drain: int, protocol: type[LimitedProtocol] = Protocol) -> listening.Server:
    """`drain`: how many seconds open requests have when the server ends."""
    return listening.make_server(app, protocol, drain, lifespan=True)
