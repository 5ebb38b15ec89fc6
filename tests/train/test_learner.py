"""Training on the GPU against PyTorch's autograd: losses, every gradient, and the adapter after some steps of AdamW."""

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from one_sequence import engine_on
from wgemma.engine.engine import Engine
from wgemma.engine.options import Options
from wgemma.files.adapters import AdapterFile, read_adapter
from wgemma.files.gguf import Gguf
from wgemma.gpu.native import NativeDevice
from wgemma.sync import run
from wgemma.train.batches import Pack
from wgemma.train.data import Example
from wgemma.train.learner import Learner
from wgemma.train.settings import TrainingSettings

SEVEN = ("q", "k", "v", "o", "gate", "up", "down")
ROWS = 96  # a bucket: the batch has 86
FEW_ROWS = 32  # the brief one has 26
TARGETS = 60
SETTINGS = TrainingSettings(rank=4, alpha=8, seq=64, batch=2, weight_decay=0.01, lr=1e-3)

# case: its base, its adapter, its targets
CASES = {
    "e2b-Brand": ("tiny-e2b-F16", "e2b-lora7", SEVEN),
    "e2b-B0": ("tiny-e2b-F16", "e2b-lora7", SEVEN),
    "e2b-ple-Brand": ("tiny-e2b-F16", "e2b-lora9", ("all",)),
    "e2b-Q8_0-Brand": ("tiny-e2b-Q8_0", "e2b-lora7", SEVEN),
    "e2b-Q4_K_M-Brand": ("tiny-e2b-Q4_K_M", "e2b-lora7", SEVEN),
    "31b-Brand": ("tiny-31b-F16", "31b-lora7", SEVEN),
    "26b-Brand": ("tiny-26b-a4b-F16", "26b-lora7", SEVEN),
}

Adapters: TypeAlias = dict[str, tuple[Any, Any]]  # A and B by tensor


@pytest.fixture(scope="module")
def batch(shared: Path) -> Pack:
    """Both sequences of the goldens, without their padding."""
    data = np.load(shared / "lora/train/batch.npz")
    sizes = data["attention_mask"].sum(axis=1)
    rows = zip(data["input_ids"], data["labels"], sizes, strict=True)
    return Pack(Example(array("i", ids[:n].tolist()), array("i", labels[:n].tolist())) for ids, labels, n in rows)


@pytest.fixture(scope="module")
def brief() -> Pack:
    """For what does not depend on the text."""
    return Pack(
        Example(array("i", ids), array("i", [-100, *ids[1:]])) for ids in ([2, *range(40, 54)], [2, *range(70, 80)])
    )


@pytest.fixture(scope="module")
def engines(gpu: NativeDevice, shared: Path) -> Iterator[Callable[[str], Engine]]:
    made: dict[str, Engine] = {}

    def of(base: str) -> Engine:
        if base not in made:
            gguf = Gguf.open(shared / f"models/{base}.gguf")
            made[base] = engine_on(gpu, gguf, Options(context=256))
        return made[base]

    yield of
    for engine in made.values():
        engine.free()
        engine.gguf.close()


@pytest.fixture
def begin(engines: Callable[[str], Engine], shared: Path) -> Iterator[Callable[..., Learner]]:
    """A learner of one of the cases, with the adapter the case begins with."""
    made: list[Learner] = []

    def of(case: str, rows: int = ROWS, **settings: Any) -> Learner:
        base, adapter, targets = CASES[case]
        learner = run(Learner.begin(engines(base), replace(SETTINGS, targets=targets, **settings), rows))
        made.append(learner)
        given = read_adapter(shared / "lora/adapters" / adapter)
        if case.endswith("B0"):
            for pair in given.pairs.values():
                pair.b[:] = array("f", bytes(4 * len(pair.b)))
        learner.put(given)
        return learner

    yield of
    for learner in made:
        learner.free()


def golden(shared: Path, case: str) -> Any:
    return json.loads((shared / f"lora/train/{case}/golden.json").read_text())


def numbers(adapter: AdapterFile) -> Adapters:
    return {name: (np.array(pair.a), np.array(pair.b)) for name, pair in adapter.pairs.items()}


def saved(shared: Path, case: str, name: str) -> Adapters:
    """Numbers in the shape of an adapter, with the configuration of the adapter that the case trains."""
    from wgemma.files.adapter_peft import read_peft

    config = (shared / "lora/adapters" / CASES[case][1] / "adapter_config.json").read_bytes()
    return numbers(run(read_peft(config, shared / f"lora/train/{case}/{name}.safetensors", name)))


ALWAYS = ("e2b-ple-Brand", "26b-Brand")


@pytest.mark.parametrize(
    "case", [case if case in ALWAYS else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_the_loss_and_every_gradient_are_autograds(
    begin: Callable[..., Learner], shared: Path, batch: Pack, case: str
) -> None:
    learner, right = begin(case), golden(shared, case)
    loss = run(learner.accumulate([batch], TARGETS, 0)) / TARGETS
    assert loss == pytest.approx(right["loss"], rel=1e-6)
    got, expected = numbers(run(learner.gradients())), saved(shared, case, "grads")
    assert got.keys() == expected.keys()
    for name, pair in expected.items():
        for ours, theirs in zip(got[name], pair, strict=True):
            assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs), name
    assert run(learner.update(1e-3, 0)) == pytest.approx(right["grad_norm"], rel=1e-5)


def test_a_software_adapter_has_the_same_gradients(begin: Callable[..., Learner], brief: Pack, shared: Path) -> None:
    """By the plain kernels, which the other tests do not use."""
    expected = begin("e2b-ple-Brand", FEW_ROWS)
    run(expected.accumulate([brief], TARGETS, 0))
    device = NativeDevice(compact=True)
    with Gguf.open(shared / "models/tiny-e2b-F16.gguf") as gguf:
        engine = engine_on(device, gguf, Options(context=256))
        learner = run(Learner.begin(engine, expected.settings, FEW_ROWS))
        learner.put(read_adapter(shared / "lora/adapters/e2b-lora9"))
        run(learner.accumulate([brief], TARGETS, 0))
        got, right = (numbers(run(each.gradients())) for each in (learner, expected))
        device.close()
    for name, pair in right.items():
        for ours, theirs in zip(got[name], pair, strict=True):
            assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs), name


@pytest.mark.slow
@pytest.mark.parametrize(("case", "steps"), [("e2b-B0", 5), ("26b-Brand", 1)])
def test_adamw_leads_to_the_same_adapter(
    begin: Callable[..., Learner], shared: Path, batch: Pack, case: str, steps: int
) -> None:
    learner, right = begin(case), golden(shared, case)
    for step in range(steps):
        loss = run(learner.accumulate([batch], TARGETS, step)) / TARGETS
        assert loss == pytest.approx(right["losses"][step], abs=1e-4)
        assert run(learner.update(1e-3, step)) == pytest.approx(right["grad_norms_before_clip"][step], rel=1e-3)
    got, expected = numbers(run(learner.adapter())), saved(shared, case, f"adapter_step{steps}")
    away = np.concatenate([(a - b) for name in expected for a, b in zip(got[name], expected[name], strict=True)])
    assert np.sqrt(np.mean(away**2)) < 2e-5
    assert np.mean(np.abs(away) > 1e-4) < 1e-3


def test_computing_layers_again_changes_nothing(begin: Callable[..., Learner], brief: Pack) -> None:
    states = []
    for checkpointing in (True, False):
        learner = begin("e2b-Brand", FEW_ROWS, checkpointing=checkpointing, dropout=0.1)
        run(learner.accumulate([brief], TARGETS, 0))
        states.append(numbers(run(learner.gradients())))
    for name, pair in states[0].items():
        assert all(np.array_equal(a, b) for a, b in zip(pair, states[1][name], strict=True)), name


def test_packing_changes_nothing(begin: Callable[..., Learner], brief: Pack) -> None:
    """Together in a pass, one behind the other in the other order, and each in a pass of its own."""
    learner = begin("e2b-Brand", FEW_ROWS)
    alone = [Pack((example,)) for example in brief]
    results = []
    for packs in ([brief], [Pack(reversed(brief))], [alone[0]], [alone[1]]):
        loss = run(learner.accumulate(packs, TARGETS, 0))
        results.append((loss, numbers(run(learner.gradients()))))
        learner.forget()
    whole, turned, *parts = results
    assert turned[0] == pytest.approx(whole[0], rel=1e-6)
    assert sum(loss for loss, _ in parts) == pytest.approx(whole[0], rel=1e-6)
    for name, pair in whole[1].items():
        for i, expected in enumerate(pair):
            limit = 1e-5 * np.linalg.norm(expected)
            assert np.linalg.norm(turned[1][name][i] - expected) <= limit
            assert np.linalg.norm(sum(part[name][i] for _, part in parts) - expected) <= limit


def test_a_run_that_is_taken_up_again_goes_on_as_it_would_have(begin: Callable[..., Learner], brief: Pack) -> None:
    first, second = begin("e2b-Brand", FEW_ROWS, dropout=0.2), begin("e2b-Brand", FEW_ROWS, dropout=0.2)

    def step(learner: Learner, number: int) -> float:
        loss = run(learner.accumulate([brief], TARGETS, number))
        run(learner.update(1e-3, number))
        return loss

    step(first, 0)
    state = run(first.state())
    expected = step(first, 1)
    run(second.restore(state))
    assert step(second, 1) == expected
    assert run(first.state()) == run(second.state())


@pytest.mark.slow
def test_dropout_is_only_in_training_and_another_in_every_step(begin: Callable[..., Learner], brief: Pack) -> None:
    plain, dropping = begin("e2b-Brand", FEW_ROWS), begin("e2b-Brand", FEW_ROWS, dropout=0.5)
    losses = {run(dropping.accumulate([brief], TARGETS, step)) for step in (0, 0, 1)}
    assert len(losses) == 2
    assert run(dropping.evaluate([brief])) == run(plain.evaluate([brief]))
    assert run(plain.evaluate([brief]))[0] not in losses


def test_gradients_that_are_not_finite_move_nothing(begin: Callable[..., Learner], batch: Pack) -> None:
    learner = begin("e2b-Brand")
    before = run(learner.state())
    learner.device.write(learner.flat.buffers["gradients"][0], 0, array("f", [float("nan")]).tobytes())
    assert not np.isfinite(run(learner.update(1e-3, 0)))
    assert run(learner.state()) == before
    assert np.isfinite(run(learner.update(1e-3, 0)))  # and they are forgotten


def test_settings_that_are_whole_numbers_count_as_such(begin: Callable[..., Learner]) -> None:
    """Without gradients only the decay moves anything: to half of it, at a rate of 0.5."""
    learner = begin("e2b-Brand", weight_decay=1, clip=1, eps=1)
    before = numbers(run(learner.adapter()))
    run(learner.update(0.5, 0))
    for name, pair in numbers(run(learner.adapter())).items():
        assert all(np.allclose(after, old / 2, rtol=1e-6) for after, old in zip(pair, before[name], strict=True)), name


def test_an_update_is_recorded_once(
    begin: Callable[..., Learner], brief: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, made = begin("e2b-Brand", FEW_ROWS), 0
    run(learner.accumulate([brief], TARGETS, 0))
    run(learner.update(1e-3, 0))
    program = learner.device.program

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        return program(*arguments)

    monkeypatch.setattr(learner.device, "program", counted)
    before = run(learner.state())
    run(learner.accumulate([brief], TARGETS, 1))
    run(learner.update(2e-3, 1))
    assert made == 0 and run(learner.state()) != before
