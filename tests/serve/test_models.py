"""Which models are in memory: loaded once, kept as long as asked for, and let go for others."""

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from api_server import serving
from fake_models import Garage
from gguf_parts import write_parts
from registry_server import digest
from registry_server import serving as registry_serving
from wgemma.creating import create
from wgemma.errors import DeviceError, OutOfMemory
from wgemma.files.gguf import Gguf
from wgemma.files.recipes import Recipe
from wgemma.serve.ask import Ask, Transcribe, Whole
from wgemma.serve.openai_audio import pieces
from wgemma.serve.problems import Problem
from wgemma.serve.service import Service
from wgemma.serve.settings import Settings

TINY = "wgemma-tiny"


@pytest.fixture
def store(data: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A store with several models; the names of two of them."""
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    expected = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    assert "gemma4:tiny" in expected
    return ["gemma4:tiny"]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def made(garage: Garage, **settings: Any) -> Service:
    return Service(Settings(**settings), garage)


async def answered(service: Service, model: str = TINY, **fields: Any) -> str:
    whole = Whole()
    async for event in service.answer(Ask(model, [{"role": "user", "content": "x"}], **fields)):
        whole.add(event)
    return whole.choices[0].text


def test_a_model_is_loaded_once_for_all_who_ask() -> None:
    garage = Garage(pause=0.001)

    async def work() -> None:
        service = made(garage)
        assert await asyncio.gather(*(answered(service) for _ in range(5))) == ["word word word "] * 5
        assert [model.name for model in garage.loaded] == [TINY] and garage.last.most_live == 5
        await service.close()
        assert garage.open == []

    run(work())


def test_it_goes_when_its_time_is_over() -> None:
    garage = Garage()

    async def work() -> None:
        service = made(garage)
        await answered(service, keep_alive=0.05)
        assert garage.open == [TINY]
        await asyncio.sleep(0.03)
        await answered(service, keep_alive=0.1)  # begins anew
        await asyncio.sleep(0.05)
        assert garage.open == [TINY] and len(garage.loaded) == 1
        await asyncio.sleep(0.15)
        assert garage.open == []
        await answered(service, keep_alive=0)
        await asyncio.sleep(0.02)
        assert garage.open == [] and len(garage.loaded) == 2

    run(work())


def test_whoever_still_uses_it_keeps_it() -> None:
    garage = Garage(words=10, pause=0.01)

    async def work() -> None:
        service = made(garage)
        slow = asyncio.ensure_future(answered(service, keep_alive=60))
        await asyncio.sleep(0.03)
        await service.load(Ask(TINY, keep_alive=0.001))
        await asyncio.sleep(0.02)
        assert garage.open == [TINY]
        assert await slow == "word " * 10
        await service.close()

    run(work())


def test_a_model_in_use_can_be_let_go_for_later() -> None:
    garage = Garage(words=10, pause=0.01)

    async def work() -> None:
        service = made(garage)
        slow = asyncio.ensure_future(answered(service))
        await asyncio.sleep(0.03)
        await service.load(Ask(TINY, keep_alive=0))
        assert not slow.done() and service.models.resident() == []
        assert await slow == "word " * 10
        await asyncio.sleep(0.03)
        assert garage.open == []

    run(work())


def test_a_recording_is_written_down_though_the_model_is_to_go(data: Path) -> None:
    """Its pieces are asked for one by one, all of the model that was there at first."""
    garage = Garage(words=10, pause=0.01, hears=True)

    async def work() -> None:
        service = made(garage)
        sound = (data / "embedded/beeps-0.wav").read_bytes()

        async def transcribe() -> list[str]:
            return [piece.text async for piece in pieces(service, Transcribe(TINY, sound))]

        begun = asyncio.ensure_future(transcribe())
        await asyncio.sleep(0.03)
        await service.load(Ask(TINY, keep_alive=0))
        assert await begun == [("word " * 10).strip()] * 2
        await asyncio.sleep(0.03)
        assert garage.open == [] and service.inside == 0

    run(work())


def test_another_model_takes_the_place_of_the_one_that_was_not_used_for_longest(store: list[str]) -> None:
    garage = Garage()

    async def work() -> None:
        service = made(garage, loaded=1)
        await answered(service)
        await answered(service, store[0])
        assert garage.open == store
        assert [one.name for one in service.models.resident()] == store
        await service.close()

    run(work())


def test_a_model_in_use_is_waited_for(store: list[str]) -> None:
    garage = Garage(words=20, pause=0.005)

    async def work() -> None:
        service = made(garage, loaded=1)
        first = asyncio.ensure_future(answered(service))
        await asyncio.sleep(0.02)
        second = asyncio.ensure_future(answered(service, store[0]))
        await asyncio.sleep(0.02)
        third = asyncio.ensure_future(answered(service))  # waits until it is loaded again
        assert await first == await second == await third == "word " * 20
        assert [model.name for model in garage.loaded] == [TINY, store[0], TINY]
        await service.close()

    run(work())


def test_when_memory_is_short_others_go(store: list[str]) -> None:
    garage = Garage()

    async def work() -> None:
        service = made(garage)
        await answered(service)
        garage.failures = [OutOfMemory("full")]
        await answered(service, store[0])
        assert garage.open == store
        await service.close()
        garage.failures = [OutOfMemory("full")]
        with pytest.raises(Problem) as caught:  # nothing is left to let go
            await answered(service)
        assert caught.value.status == 503
        assert await answered(service) == "word word word "
        await service.close()

    run(work())


def test_a_model_that_cannot_be_loaded_fails_those_who_wait_and_is_tried_again() -> None:
    garage = Garage()
    garage.failures = [DeviceError("a driver's secret at /home/me")]

    async def work() -> None:
        service = made(garage)
        results = await asyncio.gather(*(answered(service) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(one, Problem) and one.status == 500 and "/" not in one.message for one in results)
        assert await answered(service) == "word word word "
        await service.close()

    run(work())


def test_whoever_leaves_while_it_loads_does_not_stop_the_others() -> None:
    garage = Garage()

    async def work() -> None:
        service = made(garage)
        tasks = [asyncio.ensure_future(answered(service)) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        assert await tasks[1] == "word word word "
        assert len(garage.loaded) == 1 and service.inside == 0
        await service.close()

    run(work())


def test_a_larger_context_loads_it_again() -> None:
    garage = Garage()

    async def work() -> None:
        service = made(garage)
        await answered(service, context=100)
        await answered(service, context=4096)
        assert len(garage.loaded) == 1
        await answered(service, context=100_000)  # more than it can have: as much as it can
        assert len(garage.loaded) == 2 and garage.last.backend.context == 8192
        await answered(service, context=100_000)
        assert len(garage.loaded) == 2
        await service.close()

    run(work())


def test_a_context_that_does_not_fit_is_tried_once() -> None:
    garage = Garage()

    def load(files: Any, settings: Settings, context: int | None) -> Any:
        return garage(files, settings, 512)  # all there is room for

    async def work() -> None:
        service = Service(Settings(), load)
        assert await answered(service, context=4000) == "word word word "
        assert len(garage.loaded) == 2 and len(garage.open) == 1

    run(work())


def test_who_leaves_while_a_model_makes_room_for_itself_does_not_keep_it_in_memory() -> None:
    garage = Garage(words=20, pause=0.005)

    async def work() -> None:
        service = made(garage)
        slow = asyncio.ensure_future(answered(service, context=100))
        await asyncio.sleep(0.02)
        wider = asyncio.ensure_future(answered(service, context=100_000))
        await asyncio.sleep(0.02)
        wider.cancel()
        assert await slow == "word " * 20
        await asyncio.sleep(0.05)
        assert garage.open == []

    run(work())


def test_a_model_that_changes_is_loaded_anew_once_its_answers_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "own"))
    garage = Garage(words=10, pause=0.005)

    async def work() -> None:
        service = made(garage)
        list(create("mine", Recipe(TINY, system="a")))
        first = asyncio.ensure_future(answered(service, "mine"))
        await asyncio.sleep(0.02)
        list(create("mine", Recipe(TINY, system="b")))
        others = [asyncio.ensure_future(answered(service, "mine")) for _ in range(3)]
        await asyncio.sleep(0.01)
        others.pop().cancel()
        assert {await one for one in (first, *others)} == {"word " * 10}
        assert [model.closed for model in garage.loaded] == [True, False]
        assert [one.files.system for one in service.models.resident()] == ["b"]
        await service.close()

    run(work())


def test_an_adapter_is_asked_for_by_name() -> None:
    garage = Garage()

    async def work() -> None:
        service = made(garage, adapters={"pip": Path("pip.gguf")})
        await answered(service)
        await answered(service, f"{TINY}+pip")
        await answered(service, f"{TINY}:latest+pip")
        assert [asked["adapter"] for asked in garage.last.asked] == [None, {"pip": 1.0}, {"pip": 1.0}]
        with pytest.raises(Problem):
            await answered(service, f"{TINY}+other")
        await service.close()

    run(work())


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "file:///x.gguf", "https://a.b/c.gguf", "../x.gguf", "~/x", "a b", "x" * 399, "\0", "", "+"]
)
def test_names_are_never_paths(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    for asked in (name, "x.gguf", str(tmp_path / "x.gguf")):
        with pytest.raises(Problem) as caught:
            made(Garage()).models.catalogue.find(asked)
        assert caught.value.status == 404 and str(tmp_path) not in caught.value.message.replace(asked, "")


def test_a_model_is_found_while_it_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WGEMMA_MODELS", str(tmp_path / "mine"))
    list(create("mine", Recipe(TINY, system="0")))
    catalogue, made_anew = made(Garage()).models.catalogue, threading.Event()

    def make() -> None:
        for i in range(30):
            list(create("mine", Recipe("mine", system=f"{i}")))
        made_anew.set()

    thread = threading.Thread(target=make)
    thread.start()
    try:
        while not made_anew.is_set():
            assert catalogue.find("mine").files.system is not None
    finally:
        thread.join()


def test_the_store_and_files_of_the_command_line_are_on_offer(store: list[str], blob: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.gguf").symlink_to(blob)
    catalogue = made(Garage(), extra=(str(tmp_path / "mine.gguf"),)).models.catalogue
    names = [files.name for files, _ in catalogue.all()]
    assert names[:2] == [TINY, "mine"] and store[0] in names
    assert catalogue.find("mine").files.model == tmp_path / "mine.gguf"


def test_files_of_the_command_line_are_hashed_once_and_not_in_the_event_loop(
    blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: hashing takes seconds."""
    threads: list[threading.Thread] = []
    hashed = hashlib.file_digest

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return hashed(*arguments)

    files = [tmp_path / f"mine{i}.gguf" for i in range(12)]
    for file in files:
        shutil.copy(blob, file)
    monkeypatch.setattr(hashlib, "file_digest", noted)
    with serving(Settings(extra=tuple(map(str, files))), Garage()) as api:
        assert api.ask("/api/generate", {"model": "mine3", "stream": False}).status == 200
        (running,) = api.ask("/api/ps").json["models"]
        assert running["name"] == "mine3" and len(threads) == 1
        for _ in range(2):
            assert len(api.ask("/api/tags").json["models"]) >= len(files)
    assert len(threads) in (len(files), len(files) + 1)  # the embedded model may be known from before
    assert all(thread.name.startswith("asyncio_") for thread in threads)


def test_a_file_in_parts_has_one_name_wherever_it_is(
    store: list[str], blob: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Gguf.open(blob) as gguf, registry_serving() as server:
        paths = write_parts(tmp_path / "local", gguf, 2, "local")
        server.blobs = {f"/far-0000{i}-of-00002.gguf": path.read_bytes() for i, path in enumerate(paths, 1)}
        far = f"http://{server.host}/far-00001-of-00002.gguf?download=true#sha256={digest(paths[0].read_bytes())[7:]}"
        catalogue = made(Garage(), extra=(str(paths[1]), far)).models.catalogue
    names = {files.name: offer.size for files, offer in catalogue.all()}
    size = sum(path.stat().st_size for path in paths)
    assert (names["local"], names["far"]) == (size, size)
