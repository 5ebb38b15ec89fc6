"""The bodies of requests to the API server."""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import wgemma
from fuzz.harness import Reader
from fuzz.mutation import ODD_TEXT, json_bytes, mutate
from hostile_bodies import ABSENT, BODIES, DIGEST, FILE, STORE_BODIES, Client, store
from wgemma.serve.settings import Settings

BLOB = "/api/blobs/"


def odd_digest(dice: Random) -> str:
    return mutate(DIGEST.encode(), dice).decode(errors="replace") if dice.random() < 0.8 else dice.choice(ODD_TEXT)


class Kept:
    """A model that the server cannot close."""

    def __init__(self, model: wgemma.Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def close(self) -> None:
        pass


def reader(model: wgemma.Model, scratch: Path) -> Reader:
    """Every answer is a good one, or an error in the API's own JSON and with a status below 500."""
    kept: Any = Kept(model)
    client = Client(lambda files, settings, context: kept, Settings(keep_alive=math.inf))
    bodies = {**BODIES, **STORE_BODIES}
    del bodies["/api/show"]  # reads the model's file each time
    paths = [*bodies, BLOB]

    def make(dice: Random) -> tuple[str, bytes]:
        path = dice.choice(paths)
        if path == BLOB:
            return (path + ABSENT, mutate(FILE, dice)) if dice.random() < 0.5 else (path + odd_digest(dice), FILE)
        return path, json.dumps(bodies[path]).encode() if dice.random() < 0.02 else json_bytes(bodies[path], dice)

    def examine(case: tuple[str, bytes]) -> str:
        with store(scratch / "store"):
            return "answered" if client.check(*case) in (200, 201) else "refused"

    return Reader("body", 50, make, examine)
