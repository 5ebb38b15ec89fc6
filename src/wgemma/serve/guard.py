"""Who may ask: wraps the whole server, including its errors.

Every web page a user visits can reach a server on loopback. So the Host must be one of ours (a name that an attacker
points at 127.0.0.1 is not), a page's Origin must be our own or one that the user listed, and what a page sends must be
JSON, which a browser asks permission for. With a key, every request needs it, and any Host will do: a page that was
tricked into reaching us does not have the key. What all bodies together hold in memory is bounded, too.
"""

import re
from fnmatch import fnmatchcase
from secrets import compare_digest

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wgemma.serve.bounds import BOUNDS
from wgemma.serve.exchange import failure
from wgemma.serve.problems import Problem
from wgemma.serve.settings import Settings
from wgemma.serve.shapes import shape_for
from wgemma.web.guard import HOST, LOOPBACK_NAMES

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TOKEN = re.compile(r"[a-z0-9-]{1,64}")
BLOBS = "/api/blobs/"  # files are uploaded there
_OPEN = ("/health",)  # needs no key
_NO_SITE = "Other sites may not use this server. OLLAMA_ORIGINS lists those that may."


class Guard:
    """ASGI middleware that passes on legitimate requests and adds the headers to every response."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.names = LOOPBACK_NAMES | {name.lower() for name in settings.names}
        self.origins = tuple(origin.lower() for origin in settings.origins)
        self.key = settings.key
        self.held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        if scope["type"] != "http":
            return  # only HTTP is supported; the server responds for us
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            self._check(scope, headers, origin)
        except Problem as problem:
            refusal = failure(shape_for(scope["path"]), problem)
            await refusal(scope, receive, _with(send, HEADERS))
            return
        extra = dict(HEADERS)
        if origin is not None:
            extra |= {
                "Access-Control-Allow-Origin": origin,
                "Vary": "Origin",
                "Cross-Origin-Resource-Policy": "cross-origin",
            }
        if scope["method"] == "OPTIONS":
            await _permission(headers)(scope, receive, _with(send, extra))
            return
        if scope["path"].startswith(BLOBS):  # goes to disk as it comes
            await self.app(scope, receive, _with(send, extra))
            return
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                self.held += len(message.get("body", b""))
                if self.held > BOUNDS.bodies:
                    raise Problem(503, "The server is busy. Try again later.", code="server_busy", retry_after=5)
            return message

        try:
            await self.app(scope, receive_counted, _with(send, extra))
        finally:
            self.held -= size

    def _check(self, scope: Scope, headers: Headers, origin: str | None) -> None:
        """Raises `Problem` for a request that must be refused."""
        host = headers.get("host", "").lower()
        named = HOST.fullmatch(host)
        reached = scope["server"][0].removeprefix("::ffff:")  # the address the client connected to
        if named is None or (self.key is None and (named[1] or named[2]) not in self.names | {reached}):
            raise Problem(403, "This server does not answer to that host name.", code="wrong_host")
        self._check_page(scope, headers, origin, host)
        if scope["method"] == "OPTIONS" or scope["path"] in _OPEN:
            return
        if self.key is not None and not _has_key(headers, self.key):
            raise Problem(401, "This server needs its API key.", code="invalid_api_key")
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may see another end of it
            raise Problem(400, "The body has two lengths.", close=True)
        if body_length(headers) > (BOUNDS.blob if scope["path"].startswith(BLOBS) else BOUNDS.body):
            raise Problem(413, "The body is too large.", code="request_too_large")

    def _check_page(self, scope: Scope, headers: Headers, origin: str | None, host: str) -> None:
        """Refuses requests of other sites' pages."""
        if origin is None:
            site = headers.get("sec-fetch-site", "none")
            if site not in ("none", "same-origin"):
                raise Problem(403, _NO_SITE, code="wrong_origin")
            return
        own = (f"http://{host}", f"https://{host}")
        if origin.lower() not in own and not any(fnmatchcase(origin.lower(), form) for form in self.origins):
            raise Problem(403, _NO_SITE, code="wrong_origin")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json" and not _takes_files(scope["path"], kind, headers):
            raise Problem(415, "A web page must send JSON, as application/json.", code="wrong_type")


def _takes_files(path: str, kind: str, headers: Headers) -> bool:
    """Whether a page may upload a form here: only with a header of ours, for which browsers ask permission."""
    asked = "authorization" in headers or "x-api-key" in headers
    return asked and kind == "multipart/form-data" and path == "/v1/audio/transcriptions"


def _has_key(headers: Headers, key: str) -> bool:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
    return any(compare_digest(one.encode(errors="replace"), key.encode()) for one in given)


def body_length(headers: Headers) -> int:
    """What the head says of it; 0 if nothing."""
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0


def _permission(headers: Headers) -> Response:
    """The answer to a browser that asks what its page may send."""
    wanted = headers.get("access-control-request-headers", "").lower().split(",")
    allowed = [name for name in (one.strip() for one in wanted) if _TOKEN.fullmatch(name)]
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": ", ".join(allowed[:64]),
            "Access-Control-Max-Age": "600",
        },
    )


def _with(send: Send, headers: dict[str, str]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(headers)
        await send(message)

    return send_with_headers
