"""The memory plan is what loading then takes, and `memory=` means what it says."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import wgemma
from fake_device import FakeDevice
from one_sequence import engine_on
from real_shapes import write_e2b
from wgemma.engine.opening import Plan, plan
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.files.gguf import Gguf
from wgemma.gpu.device import DEFAULT_LIMITS, Limits
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.model.config import Config
from wgemma.model.rows import PAGE
from wgemma.sync import run

MODELS = ("tiny-e2b-Q4_0", "tiny-12b-Q4_K_M", "tiny-26b-a4b-Q4_K_M", "tiny-31b-F16", "tiny-heads-Q4_K_M")
DEVICES: dict[str, Callable[[], NativeDevice]] = {
    "compact": NativeDevice,
    "not compact": lambda: NativeDevice(compact=False),
}


def micro(data: Path) -> Path:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return data / "ollama-store" / store["gemma4:tiny"]["model"]


async def reach(runner: Runner, context: int) -> None:
    """A sequence takes pages for a whole context."""
    sequence = runner.paging.alone()
    for end in range(0, context + 1, PAGE):  # as it grows, so that its window moves on
        await runner.paging.reach(sequence, end)
        sequence.ids = [0] * end
        runner.paging.settle(sequence)
    await runner.paging.reach(sequence, context)
    runner.paging.drop(sequence)


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> NativeDevice:
    return DEVICES[request.param]()


@pytest.mark.parametrize(("precision", "context"), [("exact", None), ("fast", 600)])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_takes_the_memory_that_was_planned(
    shared: Path, device: NativeDevice, model: str, precision: str, context: int | None
) -> None:
    planned: list[Plan] = []
    options = {"context": context, "precision": precision, "announce": planned.append}
    before = device.allocated
    with wgemma.load(shared / f"models/{model}.gguf", device=device, **options) as loaded:
        taken = device.allocated - before
        assert abs(taken - planned[0].least) <= 0.01 * taken
        runner = loaded.backend.runner
        run(reach(runner, runner.engine.context))
        taken = device.allocated - before
        assert abs(taken - planned[0].gpu) <= 0.01 * taken
    assert device.allocated == before


@pytest.mark.parametrize("ple", ["gpu", "host"])
def test_the_embedded_model_takes_what_was_planned(device: NativeDevice, ple: str) -> None:
    planned: list[Plan] = []
    before = device.allocated
    with wgemma.load(device=device, ple=ple, announce=planned.append):
        taken = device.allocated - before
    assert planned[0].table_on_gpu == (ple == "gpu")
    assert abs(taken - planned[0].least) <= 0.01 * taken


@pytest.mark.parametrize("limits", [Limits(binding=2 << 30, buffer=4 << 30), DEFAULT_LIMITS], ids=["large", "default"])
@pytest.mark.parametrize("context", [4096, pytest.param(20_000, marks=pytest.mark.slow), 131_072])
def test_the_plan_holds_for_real_shapes_and_depths(tmp_path: Path, limits: Limits, context: int) -> None:
    write_e2b(tmp_path / "e2b.gguf")
    with Gguf.open(tmp_path / "e2b.gguf") as gguf:
        device, options = FakeDevice(limits), Options(context=context, ple="gpu")
        planned = run(plan(device, gguf, Config.from_gguf(gguf), options, table_on_gpu=True))  # type: ignore[arg-type]
        assert device.allocated == 0
        runner = Runner(engine_on(device, gguf, options))  # type: ignore[arg-type]
        assert device.allocated == planned.least
        run(reach(runner, context))
        assert device.allocated == planned.gpu


def test_a_plan_reads_next_to_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gguf.open(micro(data)) as gguf:
        read: list[int] = []
        source_read = gguf.source.read

        async def counted(offset: int, size: int) -> object:
            read.append(size)
            return await source_read(offset, size)

        monkeypatch.setattr(gguf.source, "read", counted)
        run(plan(NativeDevice(), gguf, Config.from_gguf(gguf), Options(), table_on_gpu=True))
    assert sum(read) <= 4096


# -- memory=


def test_too_little_memory_is_refused_with_what_is_needed(data: Path, gpu: NativeDevice) -> None:
    before = gpu.allocated
    with pytest.raises(wgemma.OutOfMemory, match=r"needs \d{7,} bytes of GPU memory.*, but memory=1000\."):
        wgemma.load(micro(data), device=gpu, memory=1000)
    assert gpu.allocated == before


def test_a_model_stays_within_its_memory(data: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgemma.engine.options.FIRST_TOKENS", 256)
    planned: list[Plan] = []
    with wgemma.load(micro(data), device=gpu, announce=planned.append):
        pass
    room = (planned[0].least + planned[0].gpu) // 2
    with wgemma.load(micro(data), device=gpu, memory=room) as model:
        runner = model.backend.runner
        assert list(model.generate([2, 30, 31], max_tokens=4, temperature=0))
        with pytest.raises(wgemma.OutOfMemory, match="cannot grow"):
            list(model.generate([2] * runner.engine.context, max_tokens=0))
        assert runner.ledger.left is not None and runner.ledger.left >= 0
        assert list(model.generate([2, 30, 31], max_tokens=4, temperature=0))  # it goes on


def test_the_table_goes_to_the_host_where_memory_is_short(gpu: NativeDevice) -> None:
    planned: list[Plan] = []
    with wgemma.load(device=gpu, ple="gpu", announce=planned.append):
        pass
    with wgemma.load(device=gpu, memory=planned[0].gpu) as model:
        assert not model.backend.runner.engine.fetches_rows
    with wgemma.load(device=gpu, memory=planned[0].gpu - 1) as model:
        assert model.backend.runner.engine.fetches_rows


# -- the ledger


def test_a_ledger_counts_frees_and_hands_over(gpu: NativeDevice) -> None:
    before = gpu.allocated
    whole = Ledger(gpu, limit=100)
    part = whole.part()
    kept = part.buffer(30, "a")  # 32 bytes
    part.buffer(40, "b")
    assert (whole.nbytes, part.nbytes, whole.left) == (72, 72, 28)
    with pytest.raises(wgemma.OutOfMemory, match="c needs 32 bytes, but only 28"):
        part.buffer(32, "c")
    with pytest.raises(wgemma.OutOfMemory):
        whole.buffers([(16, "d"), (16, "e")])
    assert whole.nbytes == 72
    part.keep(kept)
    whole.free()
    assert (whole.nbytes, gpu.allocated - before) == (0, 32)
    whole.adopt(kept)
    whole.drop(kept)
    assert gpu.allocated == before
    with pytest.raises(wgemma.OutOfMemory):
        whole.adopt(gpu.buffer(128, "too large"))
    assert gpu.allocated == before
