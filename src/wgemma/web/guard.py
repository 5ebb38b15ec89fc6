"""Admits only this machine's browser, on this page. Wraps the whole server, including its errors.

Every web page a user visits can reach a server on loopback. Three checks keep them out: the Host must be one of ours (a
name that an attacker points at 127.0.0.1 is not), the Origin must be our own, and Sec-Fetch-Site must not name another
site, except to follow a link to the page itself.
"""

import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgemma.web.site import CSP

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "Content-Security-Policy": f"{CSP}; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]{1,5})?")


class Guard:
    """ASGI middleware that passes on legitimate requests and adds the headers to every response."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self.app = app
        self.names = LOOPBACK_NAMES | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # only HTTP is supported; the server responds for us

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """The error response for a request that must be refused, else None."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        named = HOST.fullmatch(host)
        reached = scope["server"][0].removeprefix("::ffff:")  # the address the browser connected to
        if named is None or (named[1] or named[2]) not in self.names | {reached}:
            return PlainTextResponse("This server does not answer to that host name.\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("Other sites may not use this server.\n", 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _opens_the_page(scope, headers):
            return PlainTextResponse("Other sites may not use this server.\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This server is read-only.\n", 405, {"Allow": "GET, HEAD"})
        return None


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Whether someone followed a link: that opens a window the other page cannot look into."""
    window = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return window and scope["path"] == "/"
