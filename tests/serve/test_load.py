"""Load on a real model: every caller gets his turn, and nothing is left of a request when it is over."""

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from api_server import TINY, Api, serving
from wgemma.engine.jobs import Job
from wgemma.serve.exchange import Answering
from wgemma.serve.listening import Protocol
from wgemma.serve.settings import Settings

BENCH = Path(__file__).resolve().parents[2] / "bench/serving.py"
CLIENTS, SLOW = 24, 3


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    spec = spec_from_file_location("bench_serving", BENCH)
    assert spec is not None and spec.loader is not None
    module = sys.modules["bench_serving"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["bench_serving"]


def load(bench: Any, api: Api, **options: Any) -> list[Any]:
    """What every client saw."""
    usual = {"url": api.url, "model": TINY, "seconds": 0.0, "requests": None, "tokens": 4, "words": 5, "key": ""}
    clients = [bench.Client(slow=i >= CLIENTS - SLOW) for i in range(CLIENTS)]
    asyncio.run(bench._load(argparse.Namespace(**{**usual, "cancel": 0.3, **options}), clients))
    assert [failure for client in clients for failure in client.failures] == []
    return clients


def left(api: Api) -> tuple[int, int, int]:
    """GPU memory, all Python objects, and those of requests, once all requests are over."""
    (resident,) = api.service.models.resident()
    assert resident.model is not None
    backend: Any = resident.model.backend
    api.wait(lambda: api.service.inside == 0 and resident.users == 0 and backend.idle)
    assert not backend.batch.seats.jobs
    time.sleep(0.1)
    alive = requests_alive()
    return resident.memory, len(gc.get_objects()), alive


def requests_alive() -> int:
    gc.collect()
    return sum(isinstance(one, Job | Answering | Protocol) for one in gc.get_objects())


def test_everybody_gets_his_turn(bench: Any, strict: None) -> None:
    """More callers than slots, some leave, some read slowly: the others are served in the order of their arrival."""
    with serving(Settings(slots=4)) as api:
        clients = load(bench, api, seconds=6.0)[: CLIENTS - SLOW]
        served = [client.answers + client.cancelled for client in clients]
        assert min(served) >= 0.5 * sum(served) / len(served)


def test_nothing_is_left_of_requests(bench: Any, strict: None) -> None:
    """A round may record a pass that none before it needed, but a leak grows with every round."""
    others = requests_alive()  # of other tests' servers
    with serving(Settings(slots=4)) as api:
        load(bench, api, requests=60)
        rounds = [left(api)]
        while len(rounds) < 6:
            load(bench, api, requests=60)
            rounds.append(left(api))
            memory, objects, requests = zip(*rounds[-2:], strict=True)
            if memory[1] <= memory[0] and objects[1] <= objects[0] + 200:
                break
        assert len(rounds) < 6 and requests[1] <= requests[0] <= others, rounds
