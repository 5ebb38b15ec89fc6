"""The bodies of requests to the API server."""

import json
import math
from random import Random
from typing import Any

import wgemma
from fuzz.harness import Reader
from fuzz.mutation import json_bytes
from hostile_bodies import BODIES, Client
from wgemma.serve.settings import Settings


class Kept:
    """A model that the server cannot close."""

    def __init__(self, model: wgemma.Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def close(self) -> None:
        pass


def reader(model: wgemma.Model) -> Reader:
    """Every answer is a good one, or an error in the API's own JSON and with a status below 500."""
    kept: Any = Kept(model)
    client = Client(lambda files, settings, context: kept, Settings(keep_alive=math.inf))
    paths = [path for path in BODIES if path != "/api/show"]  # reads the model's file each time

    def make(dice: Random) -> tuple[str, bytes]:
        path = dice.choice(paths)
        return path, json.dumps(BODIES[path]).encode() if dice.random() < 0.02 else json_bytes(BODIES[path], dice)

    def examine(case: tuple[str, bytes]) -> str:
        return "answered" if client.check(*case) == 200 else "refused"

    return Reader("body", 50, make, examine)
