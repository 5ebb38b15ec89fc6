"""How much training takes is known before it starts, and what does not fit is refused with what would."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from one_sequence import engine_on
from wgemma.engine.engine import Engine
from wgemma.engine.options import Options
from wgemma.errors import OutOfMemory, TrainingError
from wgemma.files.gguf import Gguf
from wgemma.gpu.native import NativeDevice
from wgemma.sync import run
from wgemma.train.fitting import capacities, estimate, open_learner
from wgemma.train.learner import Learner
from wgemma.train.settings import TrainingSettings

SETTINGS = TrainingSettings(rank=4, alpha=8, seq=64, batch=2)


@pytest.fixture(scope="module")
def engine(gpu: NativeDevice, data: Path) -> Iterator[Engine]:
    store = data / "ollama-store"
    with Gguf.open(store / json.loads((store / "EXPECTED.json").read_text())["models"]["gemma4:tiny"]["model"]) as gguf:
        engine = engine_on(gpu, gguf, Options(context=256))
        yield engine
        engine.free()


def test_the_estimate_is_what_is_allocated(engine: Engine) -> None:
    for checkpointing in (True, False):
        settings = replace(SETTINGS, checkpointing=checkpointing, dropout=0.1)
        learner = run(Learner.begin(engine, settings, 96))
        assert estimate(engine, settings, 96).nbytes == learner.nbytes
        learner.free()


def test_what_does_not_fit_is_refused_with_what_would(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = engine.ledger._whole
    assert whole is not None
    settings = replace(SETTINGS, seq=256, batch=4)
    room = estimate(engine, replace(settings, seq=64), 64).nbytes
    monkeypatch.setattr(whole, "limit", whole.nbytes + room)
    assert capacities(engine, settings) == []
    with pytest.raises(TrainingError, match=r"GB beside the model.*With seq 64 it would need \d+% of that"):
        run(open_learner(engine, settings))
    monkeypatch.setattr(whole, "limit", whole.nbytes + 1000)
    with pytest.raises(TrainingError, match="lower rank or a smaller model"):
        run(open_learner(engine, settings))


def test_a_gpu_that_runs_full_gets_everything_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows are tried until there is room, and what was tried before is given back."""
    device, make, live = engine.device, engine.device.buffer, {}
    settings = replace(SETTINGS, seq=32, batch=4)
    most = estimate(engine, settings, 32).nbytes + 1000

    def limited(size: int, label: str) -> Any:
        if sum(buffer.size for buffer in live.values()) + size > most:
            raise OutOfMemory("the GPU is full.")
        buffer = make(size, label)
        live[id(buffer)] = buffer
        return buffer

    free = device.free
    monkeypatch.setattr(device, "buffer", limited)
    monkeypatch.setattr(device, "free", lambda buffer: (live.pop(id(buffer), None), free(buffer)))
    learner = run(open_learner(engine, settings))
    assert learner.rows == 32 and sum(buffer.size for buffer in live.values()) == learner.nbytes
    learner.free()
    assert not live
