"""Prompts that say how far they are, and can be stopped on the way."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wgemma
from wgemma import Part, PromptProgress
from wgemma.engine.backend import GpuBackend
from wgemma.engine.batch import Batch, Job
from wgemma.gpu.native import NativeDevice

PICTURE = np.random.default_rng(1).integers(0, 256, (60, 90, 3), dtype=np.uint8)
SOUND = np.random.default_rng(1).uniform(-0.5, 0.5, 20_000).astype(np.float32)
LONG = [2, *np.random.default_rng(1).integers(24, 1000, 199).tolist()]  # two passes


@pytest.fixture(scope="module")
def blob(data: Path) -> Path:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return data / "ollama-store" / store["gemma4:tiny"]["model"]


@pytest.fixture(scope="module")
def loaded(blob: Path, gpu: NativeDevice) -> wgemma.Model:
    return wgemma.load(blob, device=gpu)


@pytest.fixture
def model(loaded: wgemma.Model) -> wgemma.Model:
    loaded.backend.runner.pass_rows = 128
    loaded.reset()
    return loaded


class Once:
    """Cancels as soon as something is `true` of the progress."""

    def __init__(self, true: Any) -> None:
        self.true = true
        self.cancel = threading.Event()
        self.heard: list[PromptProgress] = []

    def __call__(self, progress: PromptProgress) -> None:
        self.heard.append(progress)
        if self.true(progress):
            self.cancel.set()


def in_step(monkeypatch: pytest.MonkeyPatch, heard: list[PromptProgress]) -> None:
    """Nothing is computed until the reader has heard of what came before."""

    def tell(job: Job, progress: PromptProgress) -> None:
        job.stream.put(progress)
        for _ in range(2000):
            if job.over or progress in heard:
                return
            time.sleep(0.005)

    monkeypatch.setattr(Batch, "_tell", staticmethod(tell))


def asking(words: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "apple " * words}]


def last(parts: Any) -> Part:
    return list(parts)[-1]


def test_a_prompt_says_how_far_it_is_until_its_first_token(model: wgemma.Model) -> None:
    heard: list[PromptProgress] = []
    list(model.generate(LONG, max_tokens=2, progress=heard.append))
    done = [progress.done for progress in heard]
    assert {(progress.stage, progress.total) for progress in heard} == {("prompt", 200)}
    assert done == sorted(done) and done[0] == 0 and done[-1] == 200 and len(set(done)) > 2
    assert [progress.finished for progress in heard] == [progress.done == 200 for progress in heard]


def test_what_is_reused_is_no_work(model: wgemma.Model) -> None:
    list(model.generate(LONG, max_tokens=1))
    heard: list[PromptProgress] = []
    usage = model.generate([*LONG, 30, 31, 32], max_tokens=1, progress=heard.append).usage
    assert usage is not None and usage.reused >= 199
    assert heard[0] == PromptProgress("prompt", 0, 203 - usage.reused)
    assert {progress.reused for progress in heard} == {usage.reused}


def test_a_cancelled_prompt_ends_between_two_passes_and_stays_in_the_cache(model: wgemma.Model) -> None:
    expected = [piece.id for piece in model.generate(LONG, max_tokens=4, temperature=0)]
    model.reset()
    once = Once(lambda progress: progress.done > 0)
    assert list(model.generate(LONG, max_tokens=4, cancel=once.cancel, progress=once)) == []
    assert 0 < once.heard[-1].done < 200
    again = model.generate(LONG, max_tokens=4, temperature=0)
    assert [piece.id for piece in again] == expected
    assert again.usage is not None and again.usage.reused >= once.heard[-1].done


def test_a_chat_cancelled_in_its_prompt_tells_what_was_computed(model: wgemma.Model) -> None:
    once = Once(lambda progress: progress.done > 0)
    end = last(model.chat(asking(80), cancel=once.cancel, progress=once))
    assert end.finish_reason == "cancelled" and end.usage is not None
    assert 0 < end.usage.computed < end.usage.prompt and (end.usage.reused, end.usage.generated) == (0, 0)
    assert end.usage.prompt_seconds > 0 and end.usage.generation_seconds == 0
    again = last(model.chat(asking(80), max_tokens=1)).usage
    assert again is not None and again.reused >= end.usage.computed
    assert again.reused + again.computed == again.prompt


def test_a_prompt_in_an_event_loop_is_cancelled_by_another_task(model: wgemma.Model) -> None:
    async def ask() -> Part:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def hear(told: PromptProgress) -> None:
            loop.call_soon(stop.set)

        parts = model.achat(asking(80), cancel=stop, progress=hear)
        return [part async for part in parts][-1]

    end = asyncio.run(ask())
    assert end.finish_reason == "cancelled" and end.usage is not None and end.usage.computed < end.usage.prompt


def test_generate_ends_when_it_is_cancelled(model: wgemma.Model) -> None:
    stop, pieces = threading.Event(), []
    for piece in model.generate([2, 40, 41], max_tokens=50, seed=1, cancel=stop):
        pieces.append(piece)
        stop.set()
    assert 1 <= len(pieces) <= 2


@pytest.mark.parametrize(("stage", "medium"), [("image", PICTURE), ("audio", (SOUND, 16_000))])
def test_media_say_which_is_encoded_and_can_be_stopped_in_between(
    model: wgemma.Model, monkeypatch: pytest.MonkeyPatch, stage: str, medium: Any
) -> None:
    parts = [{"type": stage, stage: medium}, {"type": "text", "text": "What is it?"}]
    asked = [{"role": "user", "content": parts}]
    once = Once(lambda progress: progress.stage == stage)
    in_step(monkeypatch, once.heard)
    end = last(model.chat(asked, max_tokens=3, cancel=once.cancel, progress=once))
    assert end.finish_reason == "cancelled" and end.usage is not None and end.usage.generated == 0
    assert [(told.stage, told.number, told.count) for told in once.heard if told.stage != "prompt"] == [(stage, 1, 1)]
    assert isinstance(model.backend, GpuBackend)
    assert not any(kept.rows for kept in model.backend.senses._media.values() if kept.kind == stage)
    monkeypatch.undo()
    heard: list[PromptProgress] = []
    assert last(model.chat(asked, max_tokens=3, progress=heard.append)).finish_reason != "cancelled"
    layers = [told for told in heard if told.stage == stage]
    assert layers and all(told.done < told.total for told in layers) and heard[-1].finished


def test_numpy_tells_and_stops_too(blob: Path) -> None:
    with wgemma.load(blob, device="reference") as slow:
        once = Once(lambda progress: progress.done > 0)
        assert list(slow.generate(LONG[:80], cancel=once.cancel, progress=once)) == []
        assert [told.done for told in once.heard] == [0, 32]
        heard: list[PromptProgress] = []
        list(slow.generate(LONG[:80], max_tokens=1, progress=heard.append))
        assert [(told.done, told.total) for told in heard] == [(0, 48), (32, 48), (48, 48)]


def test_a_reply_is_timed_by_its_tokens_even_if_all_text_is_held_back(model: wgemma.Model) -> None:
    words = "".join(part.text for part in model.chat(asking(1), max_tokens=8, temperature=0))
    *parts, end = model.chat(asking(1), max_tokens=8, temperature=0, stop=[words + "…"])
    assert len([part for part in parts if part.text]) == 1 and end.usage is not None
    assert end.usage.generated == 8 and end.usage.generation_seconds > 0 and end.usage.prompt_seconds > 0


@pytest.mark.parametrize("odd", [5, "often", [print]])
def test_odd_listeners_are_sentences(model: wgemma.Model, odd: Any) -> None:
    for call in (model.chat, model.generate):
        with pytest.raises(wgemma.SettingsError, match="progress is"):
            list(call([2] if call == model.generate else asking(1), progress=odd))  # type: ignore[arg-type]
