"""Adapters on the GPU against PEFT's logits, and against NumPy where there are none: all targets, few rows and many."""

import json
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import wgemma
from adapter_maker import pair
from gguf_writer import write_gguf
from wgemma.engine.adapting import Choice
from wgemma.engine.backend import GpuBackend
from wgemma.engine.runner import Runner
from wgemma.engine.sequence import TokenSequence
from wgemma.errors import AdapterError
from wgemma.files.adapters import AdapterFile, Pair, read_adapter, write_gguf_adapter
from wgemma.gpu.device import Limits, Span
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model import attention, forms
from wgemma.model.adapters import MOST_BINDINGS, Lows, load_adapters, lows_over, meets
from wgemma.model.config import Config, find_tensors
from wgemma.model.passes import Pass
from wgemma.reference.dequantize import dequantize
from wgemma.reference.quantize import quantize
from wgemma.sync import run

Floats = NDArray[np.float32]
BASES = {"e2b": "tiny-e2b", "31b": "tiny-31b", "26b": "tiny-26b-a4b"}
BOUND = {"e2b": 1e-3, "31b": 1e-3, "26b": 5e-3}
NAMES = ("e2b-lora7", "e2b-lora9", "e2b-rslora", "31b-lora7", "31b-pattern", "26b-lora7")
ON_GPU = [(name, "gpu") for name in NAMES]
FEW = [3, 1, 2, 4, 1, 8]  # rows of passes that take the mat-vec path


@pytest.fixture(scope="module")
def prompts(shared: Path) -> dict[str, list[int]]:
    told: dict[str, list[int]] = json.loads((shared / "lora/logits/tokens.json").read_text())
    return told


@pytest.fixture(scope="module")
def compact() -> Iterator[NativeDevice]:
    """Computes as a software adapter should, by one plain kernel; that is also quick to compile."""
    device = NativeDevice(compact=True)
    yield device
    device.close()


def error(got: Floats, golden: Floats) -> float:
    return float(np.abs(got - golden[: len(got)]).max())


# One makes z in the dispatch that needs it, the other, as most do, in one of its own.
@pytest.mark.parametrize(
    ("name", "device"),
    [
        *(name if name[0] == "26b-lora7" else pytest.param(*name, marks=pytest.mark.slow) for name in ON_GPU),
        ("e2b-lora9", "floor"),
    ],
)
def test_logits_equal_pefts(
    shared: Path, request: pytest.FixtureRequest, prompts: dict[str, list[int]], name: str, device: str
) -> None:
    base, where = name.partition("-")[0], request.getfixturevalue(device)
    assert meets(where) == (device == "gpu")
    golden, folder = np.load(shared / f"lora/logits/{name}.npz"), shared / "lora/adapters"
    with wgemma.load(shared / f"models/{BASES[base]}-F16.gguf", device=where, kv="f32") as model:
        model.load_adapter(folder / name)
        assert error(model.logits(prompts["short"], chunks=FEW), golden["short"]) <= BOUND[base]
        assert error(model.logits(prompts["long"]), golden["long"]) <= BOUND[base]
        model.load_adapter(folder / f"{name}.gguf", name)
        assert model.adapters == {name: 1.0}
        assert error(model.logits(prompts["short"]), golden["short"]) <= BOUND[base]


@pytest.mark.parametrize("kernel", ["matvec", "low_project"])
def test_a_window_in_pieces_is_put_together_on_the_way(
    shared: Path, gpu: NativeDevice, prompts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setattr(gpu, "in_order", kernel == "matvec")
    monkeypatch.setattr(attention, "keys_at_a_time", lambda form: 8)
    recorded: list[tuple[str, bool]] = []
    run_kernel = Tape.run

    def spy(self: Tape, kernel: str, grid: Any, bindings: Any, params: Any = (), constants: Any = None) -> None:
        recorded.append((kernel, bool(constants and constants.get("JOIN"))))
        run_kernel(self, kernel, grid, bindings, params, constants)

    monkeypatch.setattr(Tape, "run", spy)
    golden, lora = np.load(shared / "lora/logits/e2b-lora7.npz"), shared / "lora/adapters/e2b-lora7"
    with wgemma.load(shared / "models/tiny-e2b-F16.gguf", device=gpu, kv="f32", adapter=lora) as model:
        recorded.clear()
        assert error(model.logits(prompts["short"], chunks=FEW), golden["short"]) <= BOUND["e2b"]
    assert [name for name in ("matvec", "low_project") if (name, True) in recorded] == [kernel]


@pytest.mark.parametrize(("kind", "device"), [("Q8_0", "compact"), ("Q4_K_M", "gpu")])
def test_logits_on_a_quantised_base_equal_pefts_on_its_values(
    shared: Path, request: pytest.FixtureRequest, prompts: dict[str, list[int]], kind: str, device: str
) -> None:
    golden = np.load(shared / f"lora/logits/e2b-lora7.{kind}-dequant.npz")
    lora = shared / "lora/adapters/e2b-lora7"
    where = request.getfixturevalue(device)
    with wgemma.load(shared / f"models/tiny-e2b-{kind}.gguf", device=where, kv="f32", adapter=lora) as model:
        assert error(model.logits(prompts["short"], chunks=FEW), golden["short"]) <= BOUND["e2b"]
        assert error(model.logits(prompts["long"]), golden["long"]) <= BOUND["e2b"]


def test_the_reference_applies_them_too(shared: Path, prompts: dict[str, list[int]]) -> None:
    for name in ("e2b-lora9", "26b-lora7"):
        base = name.partition("-")[0]
        with wgemma.load(shared / f"models/{BASES[base]}-F16.gguf", device="reference") as model:
            model.load_adapter(shared / "lora/adapters" / name)
            golden = np.load(shared / f"lora/logits/{name}.npz")
            assert error(model.logits(prompts["long"]), golden["long"]) <= BOUND[base]


# -- against the reference


def everything(path: Path, rank: int = 3, seed: int = 0) -> AdapterFile:
    """An adapter on every matrix of a model that can have one, of different ranks."""
    with wgemma.Gguf.open(path) as gguf:
        tensors = find_tensors(Config.from_gguf(gguf), gguf.tensors)
    wanted = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "inp_gate", "proj")
    experts = ("ffn_gate_up_exps", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    pairs: dict[str, Pair] = {}
    for i, (name, tensor) in enumerate(tensors.items()):
        part = name.split(".")[2] if name.startswith("blk.") else name
        if name.endswith(".weight") and part in (*wanted, *experts, "token_embd.weight", "output.weight"):
            columns, rows, *many = tensor.shape
            count = many[0] if many else 1
            pairs[name] = pair(columns, rows, rank=rank + i % 2, scale=0.7, experts=count, seed=seed + 2 * i)
    columns, rows = tensors["token_embd.weight"].shape
    pairs["output.weight"] = pair(columns, rows, rank=2, scale=0.5, seed=seed + 1000)
    return AdapterFile("all", pairs, 1.0)


def compare(path: Path, adapter: Path, device: NativeDevice, bound: float) -> None:
    """One pass, passes of few rows, and a token that is generated."""
    ids = [2, *np.random.default_rng(5).integers(24, 1000, 29).tolist()]
    with wgemma.load(path, device="reference", adapter=adapter) as slow:
        expected = slow.logits(ids)
        bare = slow.logits(ids, adapter=None)
    assert error(bare, expected) > 0.5  # it does something
    with wgemma.load(path, device=device, kv="f32", adapter=adapter) as model:
        for chunks in ([30], FEW):
            got = model.logits(ids[: sum(chunks)], chunks=chunks)
            assert error(got, expected) <= bound
        assert next(model.generate(ids, temperature=0)).id == expected[-1].argmax()
        assert error(model.logits(ids, adapter=None), bare) <= bound


@pytest.mark.parametrize("model", ["tiny-e2b-Q4_K_M", pytest.param("tiny-26b-a4b-F16", marks=pytest.mark.slow)])
def test_every_matrix_can_be_adapted_the_embedding_the_output_and_experts_too(
    shared: Path, gpu: NativeDevice, tmp_path: Path, model: str
) -> None:
    path, file = shared / f"models/{model}.gguf", tmp_path / "all.gguf"
    write_gguf_adapter(everything(path), file)
    compare(path, file, gpu, 1e-3 if "e2b" in model else 5e-3)
    meeting = [kernel for (_, constants), kernel in gpu._kernels.items() if dict(constants).get("MEETS")]
    assert 0 < max(len(kernel.bindings.keys() - {"params"}) for kernel in meeting) <= MOST_BINDINGS


@pytest.mark.parametrize("device", ["compact", pytest.param("gpu", marks=pytest.mark.slow)])
def test_gate_and_up_of_two_types_are_adapted_apart_and_so_are_those_of_experts(
    shared: Path, request: pytest.FixtureRequest, tmp_path: Path, device: str
) -> None:
    with wgemma.Gguf.open(shared / "models/tiny-26b-a4b-F16.gguf") as gguf:
        metadata = {k: v if isinstance(v, int | float | str) else list(v) for k, v in gguf.metadata.items()}
        tensors = {t.name: (t.type, t.shape, gguf.read(t.name)) for t in gguf.tensors.values()}
    changed: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for name, (kind, shape, raw) in tensors.items():
        if name.endswith("ffn_gate_up_exps.weight"):  # in one layer of two types, in the next of one
            k, n, count = shape
            halves = np.frombuffer(raw, np.float16).reshape(count, 2, n // 2, k).astype(np.float32)
            for i, part in enumerate(("gate", "up")):
                to = "Q8_0" if i and name.startswith(("blk.0.", "blk.2.", "blk.4.")) else "F16"
                data = quantize(halves[:, i].reshape(-1, k), to).tobytes()
                changed[name.replace("gate_up", part)] = (to, (k, n // 2, count), data)
        elif name.endswith(("ffn_up.weight", "attn_k.weight")):
            changed[name] = ("Q8_0", shape, quantize(dequantize(raw, kind, shape[::-1]), "Q8_0").tobytes())
        else:
            changed[name] = (kind, shape, raw)
    path, file = tmp_path / "apart.gguf", tmp_path / "all.gguf"
    path.write_bytes(write_gguf(metadata, changed))
    write_gguf_adapter(everything(path), file)
    compare(path, file, request.getfixturevalue(device), 5e-3)


def test_a_software_adapter_computes_the_same(
    shared: Path, compact: NativeDevice, prompts: dict[str, list[int]]
) -> None:
    golden = np.load(shared / "lora/logits/e2b-lora9.npz")["short"]
    lora = shared / "lora/adapters/e2b-lora9"
    with wgemma.load(shared / "models/tiny-e2b-F16.gguf", device=compact, kv="f32", adapter=lora) as model:
        assert error(model.logits(prompts["short"], chunks=FEW), golden) <= BOUND["e2b"]


# -- several


@pytest.mark.slow
def test_two_adapters_are_the_sum_of_their_parts(
    shared: Path, gpu: NativeDevice, prompts: dict[str, list[int]]
) -> None:
    ids, folder = prompts["short"], shared / "lora/adapters"
    both = {"a": folder / "e2b-lora7", "b": folder / "e2b-lora9.gguf"}
    path = shared / "models/tiny-e2b-F16.gguf"
    scales = {"a": 0.25, "b": -0.5}
    with wgemma.load(path, device="reference", adapter=both) as slow:
        expected = {None: slow.logits(ids, adapter=None), "a": slow.logits(ids, adapter="a")}
        all_of_them, weighed = slow.logits(ids), slow.logits(ids, adapter=scales)
    with wgemma.load(path, device=gpu, kv="f32", adapter=both) as model:
        for choice, golden in expected.items():
            assert error(model.logits(ids, adapter=choice), golden) <= BOUND["e2b"]
        assert error(model.logits(ids), all_of_them) <= BOUND["e2b"]
        assert error(model.logits(ids, adapter=scales), weighed) <= BOUND["e2b"]
        assert (model.logits(ids, adapter={"a": 0}) == model.logits(ids, adapter=None)).all()
        model.unload_adapter("a")
        model.load_adapter(folder / "e2b-lora9.gguf", "b", scale=0.5)
        assert model.adapters == {"b": 0.5}
        assert error(model.logits(ids), model.logits(ids, adapter={"b": 0.5})) == 0


# -- several sequences in one pass


def logits_of(
    runner: Runner, sequence: TokenSequence, tokens: list[int], position: int, lows: Lows | None, at_once: int = 0
) -> Floats:
    """One pass over these tokens; the logits of all rows together, or of `at_once` at a time."""
    engine, count, logits, heads = runner.engine, len(tokens), runner.all_logits(), []
    run(runner.paging.reach(sequence, position + count))
    run(runner.put_rows(sequence, tokens, position, count))
    tape, prompt = Tape(engine.device, "pass"), runner.prompt
    passing = Pass(tape, count, prompt.buffer, prompt.tables, runner.paging.arena, 256, lows)
    stream = engine.decoder.record(passing)
    if not at_once:
        engine.decoder.head(passing, stream, logits)
        tape.program().replay()
        return numpy_of(runner, count)
    engine.decoder.settle(passing, stream)
    tape.program().replay()
    for first in range(0, count, at_once):
        some = Tape(engine.device, "head")
        engine.decoder.head_of_some(some, first, min(at_once, count - first), logits, lows)
        some.program().replay()
        heads.append(numpy_of(runner, min(at_once, count - first)))
    return np.concatenate(heads)


def numpy_of(runner: Runner, rows: int) -> Floats:
    vocab = runner.engine.config.vocab_size
    read = run(runner.device.read(runner.all_logits(), 0, 4 * rows * vocab))
    return np.frombuffer(read, np.float32).reshape(rows, vocab)


# Few rows and many, on all kernels; the many rows' feed-forward block and logits take two steps, too.
@pytest.mark.parametrize(
    ("model", "device", "rows"),
    [
        ("tiny-e2b-Q4_K_M", "gpu", 3),
        ("tiny-e2b-Q4_K_M", "gpu", 13),
        ("tiny-26b-a4b-F16", "compact", 3),
        pytest.param("tiny-26b-a4b-F16", "gpu", 3, marks=pytest.mark.slow),
    ],
)
def test_every_row_of_a_pass_can_have_its_own_setting(
    shared: Path, request: pytest.FixtureRequest, tmp_path: Path, model: str, device: str, rows: int
) -> None:
    path, bound = shared / f"models/{model}.gguf", 1e-3 if "e2b" in model else 5e-3
    for seed, name in enumerate(("a", "b")):
        write_gguf_adapter(everything(path, rank=2 + seed, seed=5000 * seed), tmp_path / f"{name}.gguf")
    files = {name: tmp_path / f"{name}.gguf" for name in ("a", "b")}
    choices: list[Choice] = ["a", None, {"a": 0.25, "b": -0.5}]
    tokens = [2, *np.random.default_rng(7).integers(24, 1000, rows - 1).tolist()]
    with wgemma.load(path, device=request.getfixturevalue(device), kv="f32", adapter=files) as loaded:
        assert isinstance(loaded.backend, GpuBackend)
        runner, engine = loaded.backend.runner, loaded.backend.engine
        sequence = runner.paging.alone()
        settings = [engine.adapters.choose(choices[row % 3]) for row in range(rows)]
        run(engine.make_settings(rows + 2))
        engine.weigh_rows(dict(enumerate(settings)))
        lows, at_once = engine.at_work_by_row(settings), 0
        if rows > forms.FEW:
            engine.scratch.step, at_once = 8, 5
        together = logits_of(runner, sequence, tokens, 0, lows, at_once)
        for row, setting in enumerate(settings):  # on the history that the rows before have left, each with its setting
            engine.weigh(setting)
            alone = logits_of(runner, sequence, [tokens[row]], row, engine.at_work(setting))
            assert error(together[row : row + 1], alone) <= bound
        assert (logits_of(runner, sequence, tokens, 0, lows, at_once) == together).all()
        engine.weigh_rows({})
        bare = logits_of(runner, sequence, tokens, 0, lows, at_once)
        # Other kernels make the products of adapted matrices, so the last bits differ.
        assert error(bare, logits_of(runner, sequence, tokens, 0, None, at_once)) <= bound
        changed = np.abs(bare - together).max(1)
        assert changed.min() > 0.1  # also in rows without adapters, since those before have some


# -- room made by somebody else


def test_room_for_an_adapter_is_laid_out_as_a_loaded_one(shared: Path, gpu: NativeDevice) -> None:
    """Training fills such room; where a tensor's numbers lie in it is told by its place."""
    with wgemma.load(shared / "models/tiny-e2b-F16.gguf", device=gpu) as model:
        assert isinstance(model.backend, GpuBackend)
        weights = model.backend.engine.weights
        buffer, end = gpu.buffer(8 << 20, "room"), 0

        def place(nbytes: int) -> Span:
            nonlocal end
            span = Span(buffer, end, nbytes)
            end += -(-nbytes // 256) * 256
            return span

        lows = lows_over(weights, 4, {"attn_q", "attn_v", "ffn_up"}, place, gpu.buffer(64, "scales"))
        assert [sorted(layer) for layer in lows.layers] == [["gate_up", "qkv"]] * 6
        file = read_adapter(shared / "lora/adapters/e2b-lora7")
        chosen = {
            name: made for name, made in file.pairs.items() if name.split(".")[2] in ("attn_q", "attn_v", "ffn_up")
        }
        ledger = Ledger(gpu)
        loaded = run(load_adapters(ledger, weights, [replace(file, pairs=chosen)]))
        for ours, theirs in zip(lows.layers, loaded.layers, strict=True):
            for name, low in ours.items():
                other = theirs[name]
                assert (low.edges, low.interleaved, low.width) == (other.edges, other.interleaved, other.width)
                a, b = numbers(gpu, other.a.parts[0].codes), numbers(gpu, other.b)
                for where in low.places:
                    made = chosen[where.tensor]
                    columns = low.a.columns
                    assert a[where.row * columns : (where.row + 4) * columns] == made.a
                    for j in range(4):
                        begin = j * low.width + where.first
                        got = b[begin : begin + where.step * (where.count - 1) + 1 : where.step]
                        assert got == made.b[j::4]
        ledger.free()


def numbers(device: NativeDevice, span: object) -> "array[float]":
    assert isinstance(span, Span)
    return array("f", run(device.read(span.buffer, span.offset, span.size)))


def test_what_would_not_be_applied_whole_is_refused(
    shared: Path, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wgemma.load(shared / "models/tiny-e2b-F16.gguf", device=gpu) as model:
        before = gpu.allocated
        monkeypatch.setattr(gpu, "limits", Limits(binding=4096))
        with pytest.raises(AdapterError, match="more than this GPU binds at once"):
            model.load_adapter(shared / "lora/adapters/e2b-lora7")
        assert model.adapters == {} and gpu.allocated == before
        monkeypatch.undo()
        assert isinstance(model.backend, GpuBackend)
        strange = AdapterFile("strange", {"blk.0.attn_q.weight": pair(256, 256), "blk.0.other.weight": pair(8, 8)}, 1.0)
        with pytest.raises(AdapterError, match=r"strange changes blk\.0\.other\.weight, which wgemma cannot adapt"):
            run(load_adapters(Ledger(gpu), model.backend.engine.weights, [strange]))
        assert gpu.allocated == before
