"""What a token costs on real shapes, counted on the recordings: dispatches, pipelines, bindings, memory."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fake_device import FakeDevice
from one_sequence import OneSequence, engine_on
from real_shapes import write_e2b
from wgemma.engine.engine import Engine
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import DEFAULT_LIMITS, Dispatch, Limits
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.cache import CacheSegment
from wgemma.model.passes import Pass
from wgemma.model.rows import RowBuffer
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


@pytest.fixture(scope="module")
def fast(e2b: Gguf) -> Engine:
    device = FakeDevice(replace(LARGE, workgroup_memory=48 << 10), subgroups=32)
    return engine_on(device, e2b, Options(precision="fast"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rows", "most"), [(1, 280), (4, 282), (8, 302), (16, 317), (32, 320), (64, 336)])
def test_a_fast_step_of_64_sequences_takes_hardly_more_dispatches_than_of_one(
    fast: Engine, rows: int, most: int
) -> None:
    with Ledger(fast.device) as ledger:
        table = RowBuffer(ledger, rows, 1024, several=True, label="rows")
        page = ledger.buffer(1 << 20, "keys and values")
        segments = {layer.index: [CacheSegment(0, 64, page, page)] for layer in fast.config.layers}
        cache = SimpleNamespace(segments=segments, packed=False, kv="f16")
        tape = Tape(fast.device, "step")
        p = Pass(tape, rows, table.buffer, table.tables, cache, 1024)  # type: ignore[arg-type]
        fast.decoder.head(p, fast.decoder.record(p), ledger.buffer(4 * rows * fast.config.vocab_size, "logits"))
        assert tape.dispatches <= most
        tape.free()


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
