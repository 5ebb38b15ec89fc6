"""What a token costs on real shapes, counted on the recordings: dispatches, pipelines, bindings, memory."""

import tracemalloc
from collections import Counter

import pytest

from fake_device import FakeDevice
from one_sequence import OneSequence, engine_on
from real_shapes import write_e2b
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import DEFAULT_LIMITS, Dispatch, Limits
from wgemma.sync import iterate

LARGE = Limits(binding=2 << 30, buffer=4 << 30)


@pytest.fixture(scope="module")
def e2b(tmp_path_factory: pytest.TempPathFactory) -> Gguf:
    path = tmp_path_factory.mktemp("shapes") / "e2b.gguf"
    write_e2b(path)
    return Gguf.open(path)


def first_token(e2b: Gguf, limits: Limits, depth: int = 20, ple: str = "gpu") -> tuple[FakeDevice, OneSequence]:
    device = FakeDevice(limits)
    session = OneSequence(Runner(engine_on(device, e2b, Options(ple=ple))))  # type: ignore[arg-type]
    list(iterate(session.generate([2, *range(1000, 1000 + depth - 1)], Sampling(), 3)))
    return device, session


def decode_dispatches(session: OneSequence) -> int:
    return max(tape.dispatches for (rows, *_), (tape, _) in session.programs.recorded.items() if rows == 1)


@pytest.mark.parametrize("depth", [20, 130_000])
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


def test_a_prompt_of_e2b_stops_at_its_last_keys_and_values(e2b: Gguf) -> None:
    _, session = first_token(e2b, LARGE, 500)
    owners = sum(layer.donor is None for layer in session.engine.config.layers)
    counted = [
        Counter(command.kernel.name for command in tape.commands if isinstance(command, Dispatch))
        for shape, (tape, _) in session.programs.recorded.items()
        if shape.finish is None
    ]
    assert owners == 15 and counted
    assert {(count["kv"], count["attention_tile"]) for count in counted} == {(owners, owners - 1)}


def test_a_prompts_sums_in_parts_take_no_memory_of_their_own(e2b: Gguf) -> None:
    device, session = first_token(e2b, LARGE, 500)
    assert "add_up" in {name for name, _ in device.kernels}
    scratch = session.engine.decoder.scratch
    assert scratch.parts is scratch["wide"]
    assert scratch["wide"].size >= 8 * scratch["ffn o"].size  # eight shares at most


def test_loading_keeps_the_python_heap_small(e2b: Gguf) -> None:
    tracemalloc.start()
    engine_on(FakeDevice(LARGE), e2b, Options())  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 150e6
