"""Ten layers of every real model's shape against the NumPy reference: slow, so only in `make test-all`."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import wgemma
from wgemma.gpu.native import NativeDevice
from wgemma.reference.decoder import Reference

pytestmark = pytest.mark.slow
IDS = [2, *np.random.default_rng(1).integers(1000, 200_000, 5).tolist()]


@pytest.fixture(scope="module", params=["e2b", "e4b", "12b", "26b-a4b", "31b"])
def path(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("synthetic") / f"{request.param}.gguf"
    tool, vocabulary = shared.parent / "synth_gguf.py", shared / "vocab/gemma4-vocab.gguf"
    options = ["--model", request.param, "--ftype", "Q4_K_M", "--layers", "10", "--fast", "--vocab", str(vocabulary)]
    subprocess.run([sys.executable, str(tool), *options, "-o", str(made)], check=True, stdout=subprocess.DEVNULL)
    yield made
    made.unlink()


def test_ten_layers_of_the_real_shape_equal_the_reference(path: Path, floor: NativeDevice) -> None:
    with wgemma.Gguf.open(path) as file:
        expected = Reference(file).logits(IDS)
    tracemalloc.start()
    with wgemma.load(path, device=floor, kv="f32", context=1024) as model:
        assert tracemalloc.get_traced_memory()[1] < 150e6
        tracemalloc.stop()
        got = model.logits(IDS)
        assert (np.sqrt(((got - expected) ** 2).mean(1) / (expected**2).mean(1))).max() <= 5e-4
        assert next(model.generate(IDS, temperature=0)).id == expected[-1].argmax()
