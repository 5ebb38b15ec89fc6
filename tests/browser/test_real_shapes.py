"""A few layers of every real model's shape in the page: rows, parts and limits that no small model has.

The vocabulary is a small model's, because a real one takes a software GPU minutes; a slow test has it all the same.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from face import Face, Floats
from test_engine import errors

from wgemma.files.gguf import Gguf
from wgemma.reference.decoder import Reference

SMALL, WHOLE = 1024, 262_144  # tokens of a small model's vocabulary, and of the real ones'
# `synth_gguf.py` with a vocabulary of another size, and without tokens that only the real one has.
SYNTHESIZE = """
import sys
from pathlib import Path
tool, tokens = Path(sys.argv[1]), int(sys.argv[2])
sys.path.insert(0, str(tool.parent))
import synth_gguf
synth_gguf.N_VOCAB = tokens
for model in synth_gguf.MODELS.values():
    model.pop("suppress", None)
sys.argv[1:] = sys.argv[3:]
synth_gguf.main()
"""

Made = Callable[..., tuple[str, list[int], Floats]]


@pytest.fixture(scope="module")
def made(server: Any, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """The address of a model with so many layers, three tokens of it, and their logits by the reference."""
    path = tmp_path_factory.mktemp("synthetic") / "real.gguf"

    def make(model: str, layers: int, tokens: int = SMALL) -> tuple[str, list[int], Floats]:
        vocabulary = shared / ("models/tiny-e2b-Q4_K_M.gguf" if tokens == SMALL else "vocab/gemma4-vocab.gguf")
        shape = ["--model", model, "--ftype", "Q4_K_M", "--layers", str(layers), "--fast", "--vocab", str(vocabulary)]
        tool = [sys.executable, "-c", SYNTHESIZE, str(shared.parent / "synth_gguf.py"), str(tokens)]
        subprocess.run([*tool, *shape, "-o", str(path)], check=True, stdout=subprocess.DEVNULL)
        ids = [2, *np.random.default_rng(1).integers(100, tokens, 2).tolist()]
        with Gguf.open(path) as file:
            return server.offer(path), ids, Reference(file).logits(ids)

    yield make
    path.unlink(missing_ok=True)


def agrees(face: Face, address: str, ids: list[int], expected: Floats, **options: Any) -> None:
    """Logits as the reference has them, of a prompt and of a single token."""
    told = face.load(address, context=1024, save=False, precision="exact", **options)
    assert options.get("ple") in (None, told["info"]["table"])
    for count in (len(ids), 1):
        assert errors(face.logits(ids[:count]), expected[:count]).max() <= 2e-3


def test_an_odd_table_is_read_on_the_gpu_and_by_the_host(face: Face, made: Made) -> None:
    """Five layers of E2B: a row of the per-layer table has 1050 bytes, which is no multiple of four."""
    model = made("e2b", 5)
    for table in ("gpu", "host"):
        agrees(face, *model, ple=table)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layers"), [("e4b", 6), ("12b", 2), ("26b-a4b", 1), ("31b", 1)])
def test_a_few_layers_of_every_size_agree_with_the_reference(face: Face, made: Made, model: str, layers: int) -> None:
    agrees(face, *made(model, layers))


@pytest.mark.slow
@pytest.mark.parametrize("table", ["gpu", "host"])
def test_the_whole_vocabulary_of_e2b_agrees_with_the_reference(face: Face, made: Made, table: str) -> None:
    agrees(face, *made("e2b", 5, WHOLE), ple=table)
