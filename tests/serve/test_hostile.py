"""Hostile bodies: always a JSON error, never a 500."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile_bodies import ABSENT, BODIES, DIGEST, FILE, STORE_BODIES, STRANGE, Client, places, put, store


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    with made.runner:
        yield made
        assert all(model.live == 0 for model in made.garage.loaded)


@pytest.mark.parametrize("path", BODIES)
def test_the_honest_ones_pass(client: Client, path: str) -> None:
    assert client.check(path, json.dumps(BODIES[path]).encode()) == 200


@pytest.mark.parametrize("path", BODIES)
def test_bodies_that_are_no_object(client: Client, path: str) -> None:
    for body in (b"", b"x", b"[]", b"null", b'{"a":', b"\xff\xfe", b"[" * 10_000, b'{"a":' * 100 + b"1" + b"}" * 100):
        assert client.check(path, body) == 400
    for text in ('{"model": NaN}', '{"model": 1e999}', '{"model": ' + "9" * 5000 + "}", '{"model":"a","model":[]}'):
        assert client.check(path, text.encode()) == 400


@pytest.mark.parametrize("path", BODIES)
def test_strange_values_anywhere(client: Client, path: str) -> None:
    for place in places(BODIES[path]):
        for value in STRANGE:
            client.check(path, json.dumps(put(BODIES[path], place, value)).encode())


@pytest.mark.parametrize("path", STORE_BODIES)
def test_strange_values_for_the_store(client: Client, path: str, tmp_path: Path) -> None:
    body = STORE_BODIES[path]
    with store(tmp_path):
        if path == "/api/delete":
            client.check("/api/copy", json.dumps({**STORE_BODIES["/api/copy"], "destination": "other"}).encode())
        assert client.check(path, json.dumps(body).encode()) == (404 if path == "/api/pull" else 200)
        for place in [*places(body), *(("model",),) * ("model" in body)]:
            for value in STRANGE:
                client.check(path, json.dumps(put(body, place, value)).encode())
        for text in (b"", b"[]", b"null", b"\xff", b"[" * 10_000):
            assert client.check(path, text) == 400


def test_strange_blobs(client: Client, tmp_path: Path) -> None:
    with store(tmp_path):
        for digest in (*(str(value) for value in STRANGE), DIGEST.upper(), DIGEST + "0", DIGEST.replace(":", "-")):
            assert client.check(f"/api/blobs/{digest}", FILE) in (400, 404)
        assert client.check(f"/api/blobs/{DIGEST}", FILE) == 200  # it is there
        assert client.check(f"/api/blobs/{ABSENT}", FILE) == 400


def test_several_changes_at_once(client: Client) -> None:
    random.seed(1)
    for _ in range(500):
        path = random.choice(list(BODIES))
        body = BODIES[path]
        for _ in range(random.randint(2, 4)):
            found = list(places(body))
            if found:
                body = put(body, random.choice(found), random.choice(STRANGE))
        client.check(path, json.dumps(body).encode())
