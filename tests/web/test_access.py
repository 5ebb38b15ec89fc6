"""Off loopback, only who has the token is served."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from wgemma.web.access import Access, fresh_token

TOKEN = "s3cret_token-x"
COOKIE = f"wgemma-8460={TOKEN}"


def ask(query: str = "", cookie: str | None = None) -> tuple[int, str | None, bytes]:
    """Status, Set-Cookie and body of the answer to a request."""
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"etag", b'"x"')]})
        await send({"type": "http.response.body", "body": b"the models"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "query_string": query.encode("latin-1"),
        "headers": [] if cookie is None else [(b"cookie", cookie.encode("latin-1"))],
        "server": ("192.0.2.1", 8460),
    }
    asyncio.run(Access(inner, TOKEN)(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers.get("set-cookie"), sent[1]["body"]


def test_the_token_in_the_address_becomes_a_cookie() -> None:
    status, cookie, body = ask(f"token={TOKEN}")
    assert (status, body) == (200, b"the models")
    assert cookie == f"{COOKIE}; Path=/; HttpOnly; SameSite=Strict"


def test_the_cookie_is_enough_and_is_not_sent_again() -> None:
    assert ask(cookie=COOKIE) == (200, None, b"the models")
    assert ask(cookie=f"a=b; {COOKIE}; c=d") == (200, None, b"the models")


def test_a_new_address_replaces_an_old_cookie() -> None:
    status, cookie, _ = ask(f"model=x&token={TOKEN}", "wgemma-8460=of-an-earlier-server")
    assert (status, cookie is not None) == (200, True)


@pytest.mark.parametrize(
    ("query", "cookie"),
    [
        ("", None), ("token=", None), ("token", None), (f"token={TOKEN}x", None), (f"token={TOKEN[:-1]}", None),
        (f"Token={TOKEN}", None), (TOKEN, None), (f"token={TOKEN.upper()}", None), ("token=%00%ff%f0%9f", None),
        ("token=\xff\xfe", None), (f"token=x&x={quote('&token=' + TOKEN)}", None), ("", ""), ("", "wgemma-8460="),
        ("", f"wgemma-8461={TOKEN}"), ("", f"wgemma={TOKEN}"), ("", f"wgemma-8460={TOKEN}x"), ("", "\xff=\xfe; ;;=;"),
    ],
)  # fmt: skip
def test_anything_else_gets_a_sentence_and_no_cookie(query: str, cookie: str | None) -> None:
    status, given, body = ask(query, cookie)
    assert (status, given) == (403, None)
    assert body.startswith(b"This address needs a token.")


def test_tokens_cannot_be_guessed() -> None:
    tokens = {fresh_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) >= 22 for token in tokens)  # 128 bits
