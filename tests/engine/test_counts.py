"""What a token costs on real shapes, counted on the recordings: dispatches, pipelines, bindings, memory."""

import tracemalloc

import pytest

from fake_device import FakeDevice
from real_shapes import write_e2b
from wgemma.engine.engine import Engine, Options, plan
from wgemma.engine.sampling import Sampling
from wgemma.engine.session import Session
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import DEFAULT_LIMITS, Limits
from wgemma.model.config import Config
from wgemma.sync import iterate, run

LARGE = Limits(binding=2 << 30, buffer=4 << 30)


@pytest.fixture(scope="module")
def e2b(tmp_path_factory: pytest.TempPathFactory) -> Gguf:
    path = tmp_path_factory.mktemp("shapes") / "e2b.gguf"
    write_e2b(path)
    return Gguf.open(path)


def first_token(e2b: Gguf, limits: Limits, depth: int = 20, ple: str = "gpu") -> tuple[FakeDevice, Session]:
    device = FakeDevice(limits)
    session = Session(run(Engine.load(device, e2b, Options(ple=ple))))  # type: ignore[arg-type]
    list(iterate(session.generate([2, *range(1000, 1000 + depth - 1)], Sampling(), 3)))
    return device, session


def decode_dispatches(session: Session) -> int:
    return max(tape.dispatches for (rows, *_), (tape, _) in session._programs.items() if rows == 1)


@pytest.mark.parametrize("depth", [20, 3000, 16_000, 60_000, 130_000])
def test_a_token_of_e2b_takes_at_most_300_dispatches(e2b: Gguf, depth: int) -> None:
    _, session = first_token(e2b, LARGE, depth)
    assert decode_dispatches(session) <= 300


def test_default_limits_cost_only_the_parts_of_the_large_matrices(e2b: Gguf) -> None:
    large, small = (decode_dispatches(first_token(e2b, limits)[1]) for limits in (LARGE, DEFAULT_LIMITS))
    assert small <= large + 30


def test_e2b_needs_at_most_60_pipelines_before_its_first_token(e2b: Gguf) -> None:
    for limits in (LARGE, DEFAULT_LIMITS):
        device, _ = first_token(e2b, limits)
        assert len(device.kernels) <= 60


def test_the_plan_tells_what_loading_then_takes(e2b: Gguf) -> None:
    config, options = Config.from_gguf(e2b), Options(context=4096)
    told = plan(config, e2b.tensors, options, 4096, True)
    device = FakeDevice(LARGE)
    engine = run(Engine.load(device, e2b, options))  # type: ignore[arg-type]
    assert abs(sum(b.size for b in engine.weights.buffers) - told.weights - told.table) < 0.01 * told.weights
    assert 0.5 < told.activations / engine.decoder.scratch.nbytes < 2
    before = device.allocated
    session = Session(engine)
    assert abs(session.cache.nbytes - told.kv) <= 0.2 * told.kv
    assert device.allocated > before


def test_a_prompts_sums_in_parts_take_no_memory_of_their_own(e2b: Gguf) -> None:
    device, session = first_token(e2b, LARGE, 500)
    assert "add_up" in {name for name, _ in device.kernels}
    scratch = session.engine.decoder.scratch
    assert scratch.parts is scratch["wide"]
    assert scratch["wide"].size >= 8 * scratch["ffn o"].size  # eight shares at most


def test_loading_keeps_the_python_heap_small(e2b: Gguf) -> None:
    tracemalloc.start()
    run(Engine.load(FakeDevice(LARGE), e2b, Options()))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6
