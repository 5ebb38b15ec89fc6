"""What `precision="fast"` costs: on the embedded model against exact, and on the tiny goldens against llama.cpp's own
rounding, which is of the same kind."""

import json
from pathlib import Path

import numpy as np
import pytest

import wgemma
from wgemma.gpu.native import NativeDevice
from wgemma.reference.twins import Array

STORY = "Mia has a red boat and a blue hat. What color is the hat? What is 17 plus 25?"

# How far llama.cpp's logits are from those of the same weights in float32, at most (fixtures/README.md).
LLAMA_CPP = [
    ("e2b", "Q8_0", "short", 0.41),
    ("e2b", "Q4_K_M", "short", 0.58),
    ("31b", "Q4_K_M", "short", 0.69),
    ("26b-a4b", "Q4_K_M", "short", 1.2),
]
LLAMA_CPP_LONGER = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
        ("e2b", "Q8_0", "mid", 0.56),
        ("e2b", "Q4_K_M", "mid", 0.76),
        ("31b", "Q4_K_M", "mid", 0.73),
        ("26b-a4b", "Q4_K_M", "mid", 3.5),
    )
]

MORE = ((None, 1), ("tiny-experts.gguf", 1), ("tiny-experts.gguf", 64))


def logits(device: NativeDevice, target: Path | None, precision: str, ids: list[int] | None, chunk: int) -> Array:
    """Of every position, a `chunk` of rows at a time: one row and many rows are computed differently."""
    with wgemma.load(target, device=device, precision=precision) as model:
        ids = model.tokenizer.encode(STORY) if ids is None else ids
        return np.asarray(model.logits(ids, chunks=[chunk] * -(-len(ids) // chunk)))


def log_softmax(values: Array) -> Array:
    shifted: Array = values.astype(np.float64) - values.max(-1, keepdims=True)
    normal: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normal


@pytest.mark.parametrize(
    ("model", "chunk"),
    [(None, 64), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_fast_is_near_exact_on_models_that_were_trained(
    gpu: NativeDevice, data: Path, model: str | None, chunk: int
) -> None:
    target = data / model if model else None  # or the embedded one
    exact, fast = (log_softmax(logits(gpu, target, precision, None, chunk)) for precision in ("exact", "fast"))
    divergence = (np.exp(exact) * (exact - fast)).sum(-1)
    assert 0 < divergence.mean() <= 0.005
    assert divergence.max() <= 0.05


@pytest.mark.parametrize("chunk", [1, 64])
@pytest.mark.parametrize(("model", "quantisation", "text", "most"), [*LLAMA_CPP, *LLAMA_CPP_LONGER])
def test_fast_is_no_further_off_than_llama_cpp(
    shared: Path, gpu: NativeDevice, model: str, quantisation: str, text: str, most: float, chunk: int
) -> None:
    folder = shared / f"tiny-{model}"
    ids = json.loads((folder / "golden.json").read_text())["sequences"][text]
    golden = np.load(folder / f"logits_{text}.{quantisation}.npy")
    found = logits(gpu, shared / f"models/tiny-{model}-{quantisation}.gguf", "fast", ids, chunk)
    assert 0 < np.abs(found - golden).max() <= most
