"""Sessions on disk: whole or refused."""

import json
from pathlib import Path

import numpy as np
import pytest

import wgemma
from one_sequence import OneSequence
from wgemma.engine.backend import GpuBackend
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.engine.saved import restore, save
from wgemma.gpu.native import NativeDevice
from wgemma.model.passes import SOFT
from wgemma.sync import iterate, run

PROMPT = [2, *range(30, 90)]


@pytest.fixture
def backend(data: Path, gpu: NativeDevice) -> GpuBackend:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    model = wgemma.load(data / "ollama-store" / store["gemma4:tiny"]["model"], device=gpu)
    assert isinstance(model.backend, GpuBackend)
    return model.backend


def greedy(session: OneSequence, ids: list[int]) -> list[int]:
    return [token.id for token in iterate(session.generate(ids, Sampling(temperature=0), 8))]


def test_a_restored_session_goes_on_as_if_nothing_had_happened(backend: GpuBackend, tmp_path: Path) -> None:
    reply = greedy(OneSequence.of(backend), PROMPT)
    run(save(backend.runner, backend.sequence, tmp_path / "chat"))
    expected = greedy(OneSequence.of(backend), [*PROMPT, *reply, 40])
    restored = OneSequence(backend.runner, run(restore(backend.runner, tmp_path / "chat")))
    assert greedy(restored, [*PROMPT, *reply, 40]) == expected
    assert restored.reused == backend.sequence.reused > len(PROMPT)


def test_a_cache_that_had_grown_further_is_restored_too(
    backend: GpuBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wgemma.model.cache.FIRST_SEGMENT", 256)
    session = OneSequence(Runner(backend.engine))
    greedy(session, [2, *(30 + i % 900 for i in range(600))])
    greedy(session, PROMPT)
    run(save(session.runner, session.sequence, tmp_path / "chat"))
    restored = OneSequence(backend.runner, run(restore(backend.runner, tmp_path / "chat")))
    assert greedy(restored, PROMPT) == greedy(session, PROMPT)
    session.free()


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


def test_ids_that_are_no_tokens_need_their_media(backend: GpuBackend, tmp_path: Path) -> None:
    greedy(OneSequence.of(backend), PROMPT)
    backend.sequence.ids[3] = SOFT + 12_345
    run(save(backend.runner, backend.sequence, tmp_path / "chat"))
    with pytest.raises(wgemma.SessionError, match="does not describe its images and sounds"):
        run(restore(backend.runner, tmp_path / "chat"))
    backend.sequence.reset()


@pytest.mark.parametrize("place", [0, 9, 40, 5000, -40, -1])
def test_a_damaged_file_is_refused(backend: GpuBackend, tmp_path: Path, place: int) -> None:
    greedy(OneSequence.of(backend), PROMPT)
    run(save(backend.runner, backend.sequence, tmp_path / "chat"))
    data = bytearray((tmp_path / "chat").read_bytes())
    data[place] ^= 1
    (tmp_path / "chat").write_bytes(data)
    with pytest.raises(wgemma.SessionError, match="damaged"):
        run(restore(backend.runner, tmp_path / "chat"))


@pytest.mark.parametrize("length", [0, 8, 50, 5000])
def test_a_cut_file_is_refused(backend: GpuBackend, tmp_path: Path, length: int) -> None:
    run(save(backend.runner, backend.sequence, tmp_path / "chat"))
    (tmp_path / "chat").write_bytes((tmp_path / "chat").read_bytes()[:length])
    with pytest.raises(wgemma.SessionError):
        run(restore(backend.runner, tmp_path / "chat"))


def test_another_models_session_is_refused(backend: GpuBackend, data: Path, gpu: NativeDevice, tmp_path: Path) -> None:
    run(save(backend.runner, backend.sequence, tmp_path / "chat"))
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    name = "hf.co/acme/gemma4-micro-GGUF:Q8_0"
    with wgemma.load(data / "ollama-store" / store[name]["model"], device=gpu) as other:
        assert isinstance(other.backend, GpuBackend)
        with pytest.raises(wgemma.SessionError, match="another model"):
            run(restore(other.backend.runner, tmp_path / "chat"))


def test_a_folder_that_cannot_be_written_is_a_sentence(backend: GpuBackend, tmp_path: Path) -> None:
    with pytest.raises(wgemma.SessionError, match="cannot be written"):
        run(save(backend.runner, backend.sequence, tmp_path / "missing" / "chat"))
