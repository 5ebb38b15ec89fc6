"""Sessions on disk: whole or refused."""

import gc
import hashlib
import json
import os
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wgemma
from one_sequence import OneSequence
from wgemma.engine.backend import GpuBackend
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import MAGIC, Kept, restore, save
from wgemma.gpu.native import NativeDevice
from wgemma.model.passes import SOFT
from wgemma.sync import iterate, run

PROMPT = [2, *range(30, 90)]


@pytest.fixture
def backend(data: Path, gpu: NativeDevice) -> GpuBackend:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    model = wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"], device=gpu)
    assert isinstance(model.backend, GpuBackend)
    model.backend.model = model  # type: ignore[attr-defined]
    return model.backend


@pytest.fixture
def session(backend: GpuBackend) -> OneSequence:
    return OneSequence.of(backend)


def greedy(session: OneSequence, ids: list[int]) -> list[int]:
    return [token.id for token in iterate(session.generate(ids, Sampling(temperature=0), 8))]


def test_a_restored_session_goes_on_as_if_nothing_had_happened(session: OneSequence, tmp_path: Path) -> None:
    reply = greedy(session, PROMPT)
    run(save(session.runner, session.kept, tmp_path / "chat"))
    kept = session.kept
    expected = greedy(session, [*PROMPT, *reply, 40])
    reused = session.reused
    session.reset()
    assert run(restore(session.runner, tmp_path / "chat")) == kept
    assert greedy(session, [*PROMPT, *reply, 40]) == expected
    assert session.reused == reused > len(PROMPT)


def test_what_is_not_there_any_more_is_computed_before_it_is_saved(session: OneSequence, tmp_path: Path) -> None:
    greedy(session, PROMPT)
    run(save(session.runner, session.kept, tmp_path / "chat"))
    session.reset()
    run(save(session.runner, session.kept, tmp_path / "again"))
    heads = [(tmp_path / name).read_bytes()[:400] for name in ("chat", "again")]
    assert heads[0] == heads[1]
    session.reset()
    run(restore(session.runner, tmp_path / "again"))
    assert greedy(session, PROMPT) and session.reused == len(PROMPT) - 1


@pytest.mark.parametrize("length", [63, 64, 65, 600])
def test_a_long_session_is_restored_into_other_pages_and_an_arena_that_must_grow(
    backend: GpuBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Of sliding layers the file has a window only, whose pages have other numbers then."""
    long, dice = [2, *(30 + i % 900 for i in range(length - 1))], OneSequence(Runner(backend.engine))
    expected = greedy(dice, long)
    run(save(dice.runner, Kept(long), tmp_path / "chat"))
    dice.free()
    monkeypatch.setattr("wgemma.engine.options.FIRST_TOKENS", 256)
    session = OneSequence(Runner(backend.engine))
    greedy(session, PROMPT)
    run(restore(session.runner, tmp_path / "chat"))
    assert greedy(session, long) == expected
    assert session.reused == len(long) - 1
    session.free()


def test_a_conversation_saves_its_own_tokens_beside_others(backend: GpuBackend, tmp_path: Path) -> None:
    model = backend.model  # type: ignore[attr-defined]
    said = [{"role": "user", "content": "Hello"}]
    one, other = model.conversation(), model.conversation()
    first = one.chat(said, max_tokens=4, temperature=0).text
    other.chat([{"role": "user", "content": "Something else"}], max_tokens=4, temperature=0).text  # noqa: B018
    one.save(tmp_path / "chat")
    model.reset()
    fresh = model.conversation()
    fresh.restore(tmp_path / "chat")
    assert repr(fresh) == repr(one) != repr(other)
    again = fresh.chat(said, max_tokens=4, temperature=0)
    assert again.text == first
    assert again.usage is not None and again.usage.reused == again.usage.prompt - 1


def test_a_chat_with_an_image_and_a_sound_goes_on_in_another_process(
    data: Path, gpu: NativeDevice, tmp_path: Path
) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    blob = data / "ollama-store" / store["gemma4:tiny"]["model"]
    dice = np.random.default_rng(3)
    picture, sound = dice.integers(0, 256, (60, 90, 3), np.uint8), dice.uniform(-1, 1, 9000).astype(np.float32)
    content = [
        {"type": "image", "image": picture, "budget": 70},
        {"type": "audio", "audio": sound},
        {"type": "text", "text": "What is that?"},
    ]
    messages = [{"role": "user", "content": content}]
    with wgemma.load(blob, device=gpu) as model:
        expected = [part.text for part in model.chat(messages, max_tokens=8, temperature=0)]
        model.save(tmp_path / "chat")
    with wgemma.load(blob, device=gpu) as model:
        model.encode_image(picture[::-1], 70)  # takes the numbers that the picture had before
        model.release_towers()
        model.restore(tmp_path / "chat")
        *parts, last = model.chat(messages, max_tokens=8, temperature=0)
        assert [part.text for part in (*parts, last)] == expected
        assert last.usage is not None and last.usage.reused == last.usage.prompt - 1
        assert isinstance(model.backend, GpuBackend)
        assert model.backend.towers.nbytes == 0  # neither was encoded again


def test_ids_that_are_no_tokens_need_their_media(strange: "Strange") -> None:
    ids = [*PROMPT[:3], SOFT + 12_345, *PROMPT[4:]]
    assert "does not describe its images and sounds" in strange.refusal({"ids": ids})


@pytest.mark.parametrize("place", [0, 9, 40, 5000, -40, -1])
def test_a_damaged_file_is_refused(session: OneSequence, tmp_path: Path, place: int) -> None:
    greedy(session, PROMPT)
    run(save(session.runner, session.kept, tmp_path / "chat"))
    data = bytearray((tmp_path / "chat").read_bytes())
    data[place] ^= 1
    (tmp_path / "chat").write_bytes(data)
    with pytest.raises(wgemma.SessionError, match="damaged"):
        run(restore(session.runner, tmp_path / "chat"))


def test_a_file_of_an_older_version_is_refused_with_a_sentence(session: OneSequence, tmp_path: Path) -> None:
    (tmp_path / "chat").write_bytes(b"WGEMMAS1" + bytes(200))
    with pytest.raises(wgemma.SessionError, match=r"another version of wgemma\. Save the chat again"):
        run(restore(session.runner, tmp_path / "chat"))


@pytest.mark.parametrize("length", [0, 8, 50, 5000])
def test_a_cut_file_is_refused(backend: GpuBackend, tmp_path: Path, length: int) -> None:
    run(save(backend.runner, Kept(PROMPT), tmp_path / "chat"))
    (tmp_path / "chat").write_bytes((tmp_path / "chat").read_bytes()[:length])
    with pytest.raises(wgemma.SessionError):
        run(restore(backend.runner, tmp_path / "chat"))


def test_another_models_session_is_refused(backend: GpuBackend, data: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    run(save(backend.runner, Kept(PROMPT), tmp_path / "chat"))
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    name = "hf.co/acme/gemma4-micro-GGUF:Q8_0"
    with wgemma.load(data / "ollama-store" / store[name]["model"], device=gpu) as other:
        assert isinstance(other.backend, GpuBackend)
        with pytest.raises(wgemma.SessionError, match="another model"):
            run(restore(other.backend.runner, tmp_path / "chat"))


# -- files from strangers


@pytest.fixture(scope="module")
def strange(data: Path, gpu: NativeDevice, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Strange"]:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    with wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"], device=gpu) as model:
        list(model.generate(PROMPT, max_tokens=2, temperature=0))
        yield Strange(model, tmp_path_factory.mktemp("sessions") / "chat")


@dataclass
class Strange:
    """A model, and sessions of it that were tampered with but have the right hash."""

    model: wgemma.Model
    path: Path

    def refusal(self, facts: bytes | dict[str, Any], body: bytes | None = None) -> str:
        """What a session with other facts in its header, or with another header, is refused with."""
        self.model.save(self.path)
        data = self.path.read_bytes()
        length = int.from_bytes(data[8:12], "little")
        if isinstance(facts, dict):
            facts = json.dumps(json.loads(data[12 : 12 + length]) | facts).encode()
        made = MAGIC + struct.pack("<I", len(facts)) + facts + (data[12 + length : -32] if body is None else body)
        self.path.write_bytes(made + hashlib.sha256(made).digest())
        with pytest.raises(wgemma.SessionError) as caught:
            self.model.restore(self.path)
        return str(caught.value)


HEADERS = [b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b'{"version": Infinity}', b'{"version": 1e999}', b"9" * 5000]


@pytest.mark.parametrize("header", [*HEADERS, b"", b"\xff", b"[]", b"1", b'"x"'], ids=range(len(HEADERS) + 5))
def test_a_header_that_is_none_is_refused(strange: Strange, header: bytes) -> None:
    assert "damaged" in (told := strange.refusal(header)) or "another version" in told


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"ids": [10**400]}, "images and sounds"),
        ({"ids": [-1]}, "not tokens"),
        ({"ids": [True]}, "not tokens"),
        ({"ids": [1.0]}, "not tokens"),
        ({"ids": {"1": 2}}, "not tokens"),
        ({"ids": [5] * 100_000}, "has 100000 tokens; the context holds"),
        ({"ids": [5] * 200}, "damaged"),  # of another size
        ({"ids": []}, "damaged"),
        ({"kv": ["x"] * 10_000}, "was saved with kv="),
        ({"kv": "f32"}, "was saved with kv='f32'. Load the model with the same."),
        ({"kv": None}, "was saved with kv=None"),
        ({"adapter": [["x", 10**400]]}, "which adapters"),
        ({"adapter": 5}, "which adapters"),
        ({"adapter": [["x", 1.0]]}, "not loaded"),
        ({"media": 5}, "images and sounds"),
        ({"media": [5]}, "images and sounds"),
        ({"media": [{"key": "f" * 64, "kind": "image", "first": 1 << 30, "count": 9, "budget": 70}]}, "images and"),
    ],
)
def test_facts_that_cannot_be_are_refused(strange: Strange, facts: dict[str, Any], sentence: str) -> None:
    told = strange.refusal(facts)
    assert sentence in told and len(told) < 300
    usage = strange.model.generate([*PROMPT, 40], max_tokens=1).usage
    assert usage is not None and usage.reused >= len(PROMPT) - 1


def test_pieces_of_another_size_are_refused_before_they_are_read(
    strange: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "damaged" in strange.refusal({}, b"")
    monkeypatch.setattr("wgemma.engine.saved._is_whole", lambda *_: pytest.fail("was read"))
    strange.refusal({}, bytes(5))
    with strange.path.open("ab") as file:
        file.truncate(1 << 36)  # takes no room on the disk
    with pytest.raises(wgemma.SessionError, match="damaged"):
        strange.model.restore(strange.path)


def test_what_may_never_end_is_refused_at_once(strange: Strange, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(wgemma.SessionError, match="is a device or a pipe"):
            strange.model.restore(path)
    with pytest.raises(wgemma.SessionError, match="is a folder"):
        strange.model.restore(tmp_path)


def test_a_session_is_read_and_written_in_steps(strange: Strange, monkeypatch: pytest.MonkeyPatch) -> None:
    strange.model.save(strange.path)
    whole = strange.path.read_bytes()
    monkeypatch.setattr("wgemma.engine.saved.STEP", 1000)
    strange.model.restore(strange.path)
    strange.model.save(strange.path)
    assert strange.path.read_bytes() == whole


def test_a_disk_that_fails_after_the_check_leaves_the_chat_as_it_was(
    strange: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(strange.model.generate(PROMPT, max_tokens=2, temperature=0))
    strange.model.save(strange.path)
    backend = strange.model.backend
    before = backend.runner.device.allocated
    monkeypatch.setattr("wgemma.engine.saved._is_whole", lambda *_: os.truncate(strange.path, 4000) or True)
    with pytest.raises(wgemma.SessionError, match="damaged"):
        strange.model.restore(strange.path)
    answer = strange.model.generate([*PROMPT, 40], max_tokens=4, temperature=0)
    expected = [piece.id for piece in answer]
    assert answer.usage is not None and answer.usage.reused >= len(PROMPT) - 1
    assert backend.runner.device.allocated == before
    strange.model.reset()
    assert [piece.id for piece in strange.model.generate([*PROMPT, 40], max_tokens=4, temperature=0)] == expected


def test_restoring_over_and_over_takes_no_more_memory(strange: Strange) -> None:
    strange.model.save(strange.path)
    device, sizes = strange.model.backend.runner.device, []
    gc.disable()  # whatever needs it would grow
    tracemalloc.start()
    for i in range(200):
        strange.model.restore(strange.path)
        if i in (49, 199):
            sizes.append((device.allocated, len(gc.get_objects()), tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    gc.enable()
    (allocated, objects, nbytes), (allocated_then, objects_then, nbytes_then) = sizes
    assert allocated_then == allocated
    assert objects_then - objects < 100 and nbytes_then - nbytes < 100_000


@pytest.mark.parametrize("path", ["notadir.txt/x", "a\0b", "", "/", ".", 5, None, "x" * 300])
def test_whatever_cannot_be_saved_to_is_a_session_error(strange: Strange, tmp_path: Path, path: Any) -> None:
    (tmp_path / "notadir.txt").write_text("")
    if isinstance(path, str) and path not in ("", "/"):
        path = f"{tmp_path}/{path}"
    with pytest.raises(wgemma.SessionError):
        strange.model.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notadir.txt"]


def test_a_folder_that_cannot_be_written_is_a_sentence(backend: GpuBackend, tmp_path: Path) -> None:
    with pytest.raises(wgemma.SessionError, match="cannot be written"):
        run(save(backend.runner, Kept(PROMPT), tmp_path / "missing" / "chat"))
