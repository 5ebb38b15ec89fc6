"""Whatever ends a pull, and whenever, the store is one that `list` and `verify` accept, and the next pull goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from registry_server import TINY, Registry, digest, serving
from wgemma.cli import main
from wgemma.files.keeping import partial_place
from wgemma.files.stores import Stores
from wgemma.pulling import pull

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")

BIG = Random(3).randbytes(400_000)
OLD = Random(4).randbytes(1000)
# Pulls a model, and is killed just before it touches the store for the nth time. The events are Python's own.
CHILD = """
import os, signal, sys
from wgemma.errors import Error
from wgemma.files import checking
from wgemma.pulling import pull

checking.LARGE = 1  # headers are read first
name, touches, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = os.environ["WGEMMA_MODELS"]
seen = 0

def hear(event, arguments):
    global seen
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"):
        if any(isinstance(part, (str, os.PathLike)) and store in str(part) for part in arguments):
            seen += 1
            if seen == touches:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hear)
if most:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
try:
    list(pull(name))
except Error as error:
    sys.exit(str(error))
print(seen)
"""


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    return Stores.find()


@pytest.fixture(scope="module")
def server() -> Iterator[Registry]:
    with serving() as server:
        server.add("acme/tiny:x", [("model", TINY), ("projector", BIG), ("license", b"words " * 900)])
        server.add("acme/tiny:old", [("model", TINY), ("projector", OLD)])
        yield server


def child(server: Registry, touches: int = 0, most: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CHILD, f"{server.host}/acme/tiny:x", str(touches), str(most)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check(stores: Stores) -> None:
    """Every model that is listed is whole."""
    assert main(["list"]) == 0
    for name in stores.own.names():
        stores.own.model(name).verify()
    assert {model.name for model in stores.own.models()} == set(stores.own.names())


def finish(server: Registry, stores: Stores) -> None:
    """The next pull completes the model, and leaves nothing unfinished."""
    server.pause = 0.0
    list(pull(f"{server.host}/acme/tiny:x"))
    check(stores)
    assert f"{server.host}/acme/tiny:x" in stores.own
    names = {str(path.relative_to(stores.own.root)) for path in stores.own.root.rglob("*")}
    assert {name for name in names if not re.fullmatch(r"blobs(/sha256-[0-9a-f]{64})?|manifests.*", name)} == set()


def touches(server: Registry) -> int:
    """How often a whole pull touches the store."""
    with child(server, touches=-1) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    return int(out)


def kill_before(server: Registry, touch: int) -> bool:
    """Whether the pull was killed there; the order of threads may spare it."""
    with child(server, touches=touch) as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), err
        return process.returncode != 0


def crash_twice(server: Registry, stores: Stores, touch: int, again: int) -> None:
    """Killed, and killed again while it cleans up after the first time."""
    kill_before(server, touch)
    check(stores)
    kill_before(server, again)
    check(stores)
    finish(server, stores)


@pytest.mark.parametrize("part", range(4))
def test_a_pull_killed_at_some_step_leaves_a_good_store(server: Registry, stores: Stores, part: int) -> None:
    list(pull(f"{server.host}/acme/tiny:old"))
    dice, count = Random(part), 45
    crash_twice(server, stores, (part * count) // 4 + dice.randrange(count // 4), dice.randrange(1, count))


@pytest.mark.slow
def test_a_pull_killed_at_any_step_leaves_a_good_store(server: Registry, tmp_path: Path, monkeypatch: Any) -> None:
    count, dice = touches(server), Random(7)
    assert count > 20
    for touch in range(1, count + 1):
        monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / f"own-{touch}"))
        crash_twice(server, Stores.find(), touch, dice.randrange(1, count))


def kill_at_random(server: Registry, stores: Stores, dice: Random, kills: int) -> None:
    """Kills pulls at random moments of their life until one gets through."""
    server.pause = 0.02
    for _ in range(kills):
        with child(server) as process:
            time.sleep(dice.uniform(0.1, 0.7))
            process.kill()
            process.communicate()
        check(stores)


def test_a_pull_killed_at_random_moments_goes_on(server: Registry, stores: Stores) -> None:
    kill_at_random(server, stores, Random(5), 4)
    finish(server, stores)


@pytest.mark.slow
def test_many_pulls_killed_at_random_moments(server: Registry, tmp_path: Path, monkeypatch: Any) -> None:
    dice = Random(6)
    for i in range(25):
        monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / f"own-{i}"))
        stores = Stores.find()
        kill_at_random(server, stores, dice, 4)
        finish(server, stores)


def test_two_processes_share_the_work(server: Registry, stores: Stores) -> None:
    server.pause = 0.02
    server.asked.clear()
    first, second = child(server), child(server)
    for process in (first, second):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    assert len([path for path, _ in server.asked if path.endswith(digest(BIG))]) == 1
    finish(server, stores)


def test_a_full_disk_is_told_and_the_next_pull_goes_on(server: Registry, stores: Stores) -> None:
    """Files may not grow beyond a limit, which is a full disk as a program sees it."""
    with child(server, most=150_000) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"a blob in .* cannot be written: File too large", err)
    check(stores)
    assert partial_place(stores.own, digest(BIG)).stat().st_size == 150_000
    server.asked.clear()
    finish(server, stores)
    assert ("bytes=150000-399999") in [span for path, span in server.asked if path.endswith(digest(BIG))]


@pytest.mark.parametrize("most", [1, 100, 300])
def test_a_disk_without_room_for_anything_leaves_a_good_store(server: Registry, stores: Stores, most: int) -> None:
    with child(server, most=most) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "cannot be written" in err
    check(stores)
    finish(server, stores)
