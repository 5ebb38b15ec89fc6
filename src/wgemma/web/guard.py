"""Who may ask: this machine's own browser, from this very page. Wrapped around the whole server, errors included.

A server on loopback is within reach of every web page its user visits. Three checks keep them out: the Host must be an
address we answer to (a name that an attacker points at 127.0.0.1 is not), the Origin must be our own, and what
the browser says about the request's site must not be another one; following a link to the page itself is fine.
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
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]{1,5})?")


class Guard:
    """An ASGI application that lets the right requests through to another, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self.app = app
        self.names = LOOPBACK_NAMES | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing here speaks anything else; the server answers for us

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is wrong with the request, as an answer."""
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        named = _HOST.fullmatch(host)
        reached = scope["server"][0].removeprefix("::ffff:")  # the address the browser connected to
        if named is None or (named[1] or named[2]) not in self.names | {reached}:
            return PlainTextResponse("This server does not answer to that name.\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("Pages of other sites may not ask here.\n", 403)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _opens_the_page(scope, headers):
            return PlainTextResponse("Pages of other sites may not ask here.\n", 403)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("Everything here is read-only.\n", 405, {"Allow": "GET, HEAD"})
        return None


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Somebody followed a link: a window of its own, which the other page cannot look into."""
    window = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return window and scope["path"] == "/"
