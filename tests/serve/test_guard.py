"""Who may ask, and who may not."""

import http.client
from collections.abc import Iterator
from contextlib import suppress

import pytest

from api_server import TINY, Api, serving
from fake_models import Garage
from wgemma.serve.bounds import BOUNDS
from wgemma.serve.settings import Settings

PATH = "/v1/chat/completions"
ASK = {"model": TINY, "messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def open_api() -> Iterator[Api]:
    """Without a key, for this machine."""
    with serving(Settings(origins=("https://chat.example", "http://127.0.0.1:*")), Garage()) as api:
        yield api


@pytest.fixture(scope="module")
def keyed_api() -> Iterator[Api]:
    with serving(Settings(key="secret", origins=("*",)), Garage()) as api:
        yield api


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:11434", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:11434", 403),
        ("localhost.evil.example", 403),
        ("a.internal", 403),
        ("printer.local", 403),
        ("127.0.0.1.nip.io", 403),
        ("localhost@evil", 403),
        ("", 403),
    ],
)
def test_only_our_own_names_are_answered(open_api: Api, host: str, status: int) -> None:
    for path in ("/", "/api/tags", "/v1/models", "/health"):
        assert open_api.ask(path, headers={"Host": host}).status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://chat.example", 200),
        ("http://127.0.0.1:3000", 200),
        ("https://evil.example", 403),
        ("https://chat.example.evil", 403),
        ("null", 403),
        ("", 403),
        ("file://", 403),
    ],
)
def test_only_pages_that_are_listed_may_ask(open_api: Api, origin: str, status: int) -> None:
    answer = open_api.ask(PATH, ASK, headers={"Origin": origin})
    assert answer.status == status
    assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
    flight = open_api.ask(
        PATH,
        method="OPTIONS",
        headers={
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os,x-stainless-runtime-version",
        },
    )
    assert flight.status == (204 if status == 200 else 403)
    if status == 200:
        assert "x-stainless-runtime-version" in flight.headers["access-control-allow-headers"]


def test_our_own_page_may_ask(open_api: Api) -> None:
    origin = {"Origin": f"http://127.0.0.1:{open_api.port}", "Host": f"127.0.0.1:{open_api.port}"}
    assert open_api.ask(PATH, ASK, headers=origin).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_page_sends_must_be_json(open_api: Api, kind: str) -> None:
    """Browsers send these without asking."""
    for path in (PATH, "/api/chat", "/v1/audio/transcriptions"):
        headers = {"Origin": "https://chat.example", "Content-Type": kind}
        assert open_api.ask(path, ASK, headers=headers).status == 415


def test_programs_need_no_content_type(open_api: Api) -> None:
    """`curl -d` sends that of a form."""
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"):
        assert open_api.ask(PATH, ASK, headers={"Content-Type": kind}).status == 200
    for kind in ("multipart/form-data; boundary=x", "application/octet-stream"):
        assert open_api.ask(PATH, ASK, headers={"Content-Type": kind}).status == 415


def test_litellm_calls_its_json_an_octet_stream(open_api: Api) -> None:
    bytes_: dict[str, str] = {"Content-Type": "application/octet-stream"}
    assert open_api.ask("/api/chat", ASK, headers=bytes_).status == 200
    assert open_api.ask("/api/chat", ASK, headers={**bytes_, "Origin": "https://chat.example"}).status == 415


@pytest.mark.parametrize(
    ("site", "status"), [("none", 200), ("same-origin", 200), ("cross-site", 403), ("same-site", 403)]
)
def test_pictures_and_links_of_other_sites_are_refused(open_api: Api, site: str, status: int) -> None:
    for path in ("/", "/api/tags", "/metrics"):
        assert open_api.ask(path, headers={"Sec-Fetch-Site": site}).status == status


def test_a_key_is_needed_everywhere(keyed_api: Api) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "secre"}, {"Authorization": "secret"}):
        for path in ("/", "/api/tags", "/v1/models", "/metrics", "/nowhere"):
            assert keyed_api.ask(path, headers=headers).status == 401
        for path in (PATH, "/v1/messages", "/api/chat", "/tokenize"):
            answer = keyed_api.ask(path, ASK, headers=headers)
            assert answer.status == 401 and "error" in answer.json
    assert keyed_api.ask("/health").status == 200
    for headers in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "secret"}, {"Authorization": "bearer secret"}):
        assert keyed_api.ask(PATH, ASK, headers=headers).status == 200


def test_with_a_key_any_name_and_listed_pages_will_do(keyed_api: Api) -> None:
    headers = {"Authorization": "Bearer secret", "Host": "gpu.my.lan:11434", "Origin": "https://any.example"}
    assert keyed_api.ask(PATH, ASK, headers=headers).status == 200
    assert keyed_api.ask(PATH, ASK, headers={**headers, "Authorization": ""}).status == 401


def test_each_api_refuses_in_its_own_words(keyed_api: Api) -> None:
    assert keyed_api.ask("/api/tags").json == {"error": "This server needs its API key."}
    assert keyed_api.ask("/v1/models").json["error"]["type"] == "authentication_error"
    assert keyed_api.ask("/v1/messages", ASK).json["error"]["type"] == "authentication_error"
    assert keyed_api.ask("/v1/messages", ASK).json["type"] == "error"


def test_every_answer_has_the_headers(open_api: Api) -> None:
    for answer in (open_api.ask("/"), open_api.ask("/nowhere"), open_api.ask("/", headers={"Host": "evil"})):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers


def test_a_body_that_is_too_large_is_refused_before_it_is_read(open_api: Api) -> None:
    connection = open_api.connect()
    connection.putrequest("POST", PATH)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(BOUNDS.body + 1))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    connection.close()


def test_a_body_of_unknown_length_is_cut_off(open_api: Api) -> None:
    connection = open_api.connect()
    connection.putrequest("POST", PATH)
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    piece = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
    with suppress(http.client.HTTPException, ConnectionError):  # refused while it was still sending
        for _ in range((BOUNDS.body >> 20) + 2):
            connection.send(piece)
        connection.send(b"0\r\n\r\n")
    with suppress(http.client.HTTPException, ConnectionError):
        assert connection.getresponse().status == 413
    connection.close()
    assert open_api.ask("/health").status == 200
