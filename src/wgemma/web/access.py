"""Asks for a token, where others than this machine can connect.

The token arrives once, in the query of the URL that was printed (`?token=…`), and comes back as a cookie with every
request of the page. The page removes it from the address bar.
"""

from secrets import compare_digest, token_urlsafe

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

QUERY = "token"


def fresh_token() -> str:
    return token_urlsafe(16)


class Access:
    """ASGI middleware that passes on requests with the token, and gives a browser its cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # only HTTP is supported; the server responds for us
        request = Request(scope)
        cookie = f"wgemma-{scope['server'][1]}"  # cookies are shared by all ports of a host

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                value = f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
                MutableHeaders(scope=message).append("Set-Cookie", value)
            await send(message)

        if self._is_right(request.cookies.get(cookie)):
            await self.app(scope, receive, send)
        elif self._is_right(request.query_params.get(QUERY)):
            await self.app(scope, receive, send_with_cookie)
        else:
            said = "This address needs a token. Open the one that was printed where the server was started.\n"
            await PlainTextResponse(said, 403)(scope, receive, send)

    def _is_right(self, given: str | None) -> bool:
        return given is not None and compare_digest(given.encode("utf-8", "replace"), self.token.encode())
