"""Texts as vectors: the mean of the last hidden state."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import wgemma
from wgemma.engine.backend import GpuBackend
from wgemma.engine.scoring import packs
from wgemma.files.gguf import Gguf
from wgemma.gpu.native import NativeDevice
from wgemma.reference.decoder import Reference
from wgemma.sync import run

HELLO = [{"role": "user", "content": "Hello"}]
TEXTS = ["Once upon a time", "a cat", "x"]
LONG = "The cat sat on the mat. " * 60  # several passes


@pytest.fixture(scope="module")
def model(blob: Path, gpu: NativeDevice) -> Iterator[wgemma.Model]:
    with wgemma.load(blob, device=gpu, kv="f32") as loaded:
        yield loaded


def expected(blob: Path, model: wgemma.Model, text: str) -> NDArray[np.float64]:
    kept: dict[str, Any] = {}
    with Gguf.open(blob) as gguf:
        Reference(gguf).logits([model.tokenizer.id("<bos>"), *model.tokenizer.encode(text)], keep=kept)
    mean = kept["output"].astype(np.float64).mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


@pytest.mark.parametrize("text", [*TEXTS, LONG])
def test_a_vector_is_the_mean_of_the_hidden_states_at_length_1(blob: Path, model: wgemma.Model, text: str) -> None:
    vector = model.embed(text)
    assert vector.dtype == np.float32 and abs(np.linalg.norm(vector) - 1) < 1e-6
    assert np.abs(vector - expected(blob, model, text)).max() < 2e-5
    assert text != LONG or len(model.tokenizer.encode(text)) > 512


def test_a_list_gives_one_vector_per_text(blob: Path, model: wgemma.Model) -> None:
    vectors = model.embed(TEXTS)
    assert vectors.shape == (3, len(model.embed("x")))
    for vector, text in zip(vectors, TEXTS, strict=True):
        assert np.abs(vector - expected(blob, model, text)).max() < 2e-5
    assert model.embed([]).shape == (0, vectors.shape[1])


@pytest.mark.parametrize("kind", ["gpu", "compact"])
def test_short_texts_share_a_pass_and_long_ones_do_not(
    blob: Path, gpu: NativeDevice, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXTS, "The dog ran. " * 9, LONG, *(f"number {i}" for i in range(60))]
    with wgemma.load(blob, device=gpu if kind == "gpu" else None, kv="f32") as model:
        runner, shared = model.backend.runner, list[int]()
        whole = runner.whole

        async def watched(some: Any, *rest: Any) -> None:
            shared.append(len(some))
            await whole(some, *rest)

        monkeypatch.setattr(runner, "whole", watched)
        vectors = model.embed(texts)
        assert shared[0] == 4 and sum(shared) == len(texts) - 1
        for i in (*range(6), 30, len(texts) - 1):
            assert np.abs(vectors[i] - expected(blob, model, texts[i])).max() < 2e-5


def test_packs_are_as_full_as_their_order_allows() -> None:
    assert list(packs([10, 20, 3, 500, 9, 4, 600, 1], 512)) == [
        range(3),
        range(3, 5),
        range(5, 6),
        range(6, 7),
        range(7, 8),
    ]
    assert list(packs([], 512)) == []
    assert list(packs([1, 1], 8)) == [range(1), range(1, 2)]  # no tile is that small


def test_the_reference_device_says_the_same(blob: Path, model: wgemma.Model) -> None:
    with wgemma.load(blob, device="reference") as slow:
        assert np.abs(slow.embed(TEXTS) - model.embed(TEXTS)).max() < 2e-5


@pytest.mark.parametrize("name", ["tiny-e2b", "tiny-26b-a4b"])
def test_hidden_states_are_those_of_transformers(shared: Path, gpu: NativeDevice, name: str) -> None:
    golden = np.load(shared / name / "hidden_short.npy")[-1]
    ids = json.loads((shared / name / "golden.json").read_text())["sequences"]["short"]
    with wgemma.load(shared / "models" / f"{name}-F16.gguf", device=gpu, kv="f32") as loaded:

        async def rows() -> bytes:
            return b"".join([part async for part in loaded.backend.hidden(ids)])

        ours = np.frombuffer(run(rows()), np.float32).reshape(golden.shape)
    assert np.linalg.norm(ours - golden) / np.linalg.norm(golden) < 2e-5


def test_the_chat_goes_on_unharmed_and_memory_does_not_grow(model: wgemma.Model, gpu: NativeDevice) -> None:
    said = model.chat(HELLO, max_tokens=4, temperature=0).text
    model.embed(TEXTS)
    again = model.chat(HELLO, max_tokens=4, temperature=0)
    assert again.usage and again.text == said and again.usage.reused == again.usage.prompt - 1
    before = gpu.allocated
    for _ in range(3):
        model.embed(TEXTS)
        assert model.chat(HELLO, max_tokens=1).usage
    assert gpu.allocated == before


def test_an_adapter_changes_the_vector(data: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    with wgemma.load("someone/mygemma:v1", device=gpu) as adapted:
        assert np.abs(adapted.embed("x") - adapted.embed("x", adapter=None)).max() > 0
        alone, together = [adapted.embed(text) for text in TEXTS], adapted.embed(TEXTS)
        assert (
            np.abs(together - np.stack(alone)).max()
            < 1e-3
            < np.abs(together - adapted.embed(TEXTS, adapter=None)).max()
        )


def test_async_and_raw_bytes_are_the_same(model: wgemma.Model) -> None:
    assert (asyncio.run(model.aembed(TEXTS)) == model.embed(TEXTS)).all()
    assert asyncio.run(model.embed_bytes("x")) == model.embed("x").tobytes()


def test_what_cannot_be_embedded_is_a_sentence(model: wgemma.Model, blob: Path, gpu: NativeDevice) -> None:
    with pytest.raises(wgemma.SettingsError, match=r"texts\[1\] is empty"):
        model.embed(["x", ""])
    for odd in (None, 5, [5], {"a": "b"}, b"x"):
        with pytest.raises(wgemma.SettingsError, match="it must be a string or a list of strings"):
            model.embed(odd)  # type: ignore[arg-type]
    with wgemma.load(blob, device=gpu, context=16) as small, pytest.raises(wgemma.ContextOverflow, match="Shorten it"):
        small.embed(LONG)


def test_a_lost_device_is_replaced(blob: Path) -> None:
    with wgemma.load(blob) as loaded:
        assert isinstance(loaded.backend, GpuBackend)
        ids = [2, *range(30, 60)]
        vectors, logits = loaded.embed(TEXTS), loaded.logits(ids)
        for call, before in ((lambda: loaded.embed(TEXTS), vectors), (lambda: loaded.logits(ids), logits)):
            device = loaded.backend.device
            assert isinstance(device, NativeDevice)
            device._device.destroy()
            assert (call() == before).all()
