"""Hostile bodies: always a JSON error, never a 500."""

import json
import random
from collections.abc import Iterator

import pytest

from hostile_bodies import BODIES, STRANGE, Client, places, put


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
