"""Adapters from call to call: switching, loading, unloading, and what a session may keep of its past."""

import hashlib
import json
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import wgemma
from adapter_maker import adapter, pair
from fake_device import FakeDevice
from one_sequence import OneSequence, engine_on
from real_shapes import write_e2b
from wgemma.engine import saved
from wgemma.engine.adapting import ALL, BARE, Adapters
from wgemma.engine.backend import GpuBackend
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Sampling
from wgemma.files.adapters import AdapterFile, Pair, write_gguf_adapter
from wgemma.gpu.device import Buffer, Limits
from wgemma.gpu.native import NativeBuffer, NativeDevice
from wgemma.model.config import Config, find_tensors
from wgemma.sync import iterate, run

PROMPT = [2, *range(30, 60)]


@pytest.fixture(scope="module")
def blob(data: Path) -> Path:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    path: Path = data / "ollama-store" / store["gemma4:tiny"]["model"]
    return path


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three adapters: two that fit the micro model, and one that does not."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {
        "first": adapter(blk__0__attn_q=pair(64, 64), blk__2__ffn_down=pair(128, 64, seed=5)),
        "second": adapter(blk__0__attn_k=pair(64, 32, rank=3, seed=7), blk__3__ffn_up=pair(64, 128, seed=9)),
        "misfit": adapter(blk__0__attn_q=pair(64, 64), blk__1__attn_output=pair(96, 64)),
    }
    for name, file in made.items():
        write_gguf_adapter(file, folder / f"{name}.gguf")
    return {name: folder / f"{name}.gguf" for name in made}


@pytest.fixture
def model(blob: Path, gpu: NativeDevice, loras: dict[str, Path]) -> Iterator[wgemma.Model]:
    adapters = [loras["first"], loras["second"]]
    with wgemma.load(blob, device=gpu, adapter=adapters) as loaded:
        yield loaded


def backend_of(model: wgemma.Model) -> GpuBackend:
    assert isinstance(model.backend, GpuBackend)
    return model.backend


def greedy(model: wgemma.Model, **options: object) -> list[int]:
    return [piece.id for piece in model.generate(PROMPT, max_tokens=4, temperature=0, **options)]


def reused(model: wgemma.Model, **options: object) -> int:
    """How many tokens of the prompt are not computed again."""
    usage = model.generate(PROMPT, max_tokens=1, temperature=0, **options).usage
    assert usage is not None
    return usage.reused


def test_switching_from_call_to_call_records_nothing_anew(model: wgemma.Model) -> None:
    backend = backend_of(model)
    for choice in ("first", None):
        greedy(model, adapter=choice)
    programs, kernels = dict(backend.runner.programs.recorded), len(backend.device._kernels)  # type: ignore[attr-defined]
    allocated = backend.device.allocated  # type: ignore[attr-defined]
    said = [greedy(model, adapter=choice) for choice in ("second", {"first": 2, "second": -1}, "first", None)]
    assert len({tuple(tokens) for tokens in said}) > 1
    assert greedy(model) == greedy(model, adapter={"first": 1.0, "second": 1})
    assert backend.runner.programs.recorded == programs
    assert len(backend.device._kernels) == kernels  # type: ignore[attr-defined]
    assert backend.device.allocated == allocated  # type: ignore[attr-defined]


def test_what_was_computed_under_one_adapter_is_not_used_under_another(model: wgemma.Model) -> None:
    expected: dict[str | None, list[int]] = {}
    for choice in ("first", "second", None):
        model.reset()
        expected[choice] = greedy(model, adapter=choice)
    model.reset()
    for choice in ("first", "second", None):
        assert reused(model, adapter=choice) == 0
        assert reused(model, adapter=choice) == len(PROMPT) - 1
    for choice in ("first", "second", None, "first"):  # each finds its own
        assert greedy(model, adapter=choice) == expected[choice]
        assert reused(model, adapter=choice) == len(PROMPT) - 1


def test_a_call_is_told_what_it_may_choose(model: wgemma.Model) -> None:
    with pytest.raises(wgemma.SettingsError, match=r"no adapter called 'third' is loaded\. Loaded: first, second"):
        greedy(model, adapter="third")
    for wrong in ({"first": "much"}, {"first": float("nan")}, 3):
        with pytest.raises(wgemma.SettingsError, match=r"scale|must be a name"):
            greedy(model, adapter=wrong)
    with pytest.raises(wgemma.SettingsError, match="Load one with `load_adapter`"):
        Adapters().choose("first")


def test_an_adapter_that_does_not_fit_changes_nothing(model: wgemma.Model, loras: dict[str, Path]) -> None:
    before, device = greedy(model), backend_of(model).device
    allocated, lows = device.allocated, backend_of(model).engine.lows  # type: ignore[attr-defined]
    with pytest.raises(wgemma.AdapterError, match="does not fit"):
        model.load_adapter(loras["misfit"], "first")
    with pytest.raises(wgemma.SettingsError, match="scale"):
        model.load_adapter(loras["second"], scale=float("inf"))
    assert model.adapters == {"first": 1.0, "second": 1.0}
    assert backend_of(model).engine.lows is lows and device.allocated == allocated  # type: ignore[attr-defined]
    assert greedy(model) == before


@pytest.mark.parametrize("label", ["adapter", "adapter scales", "adapter scales by row", "z"])
def test_without_room_for_one_more_the_others_go_on(
    blob: Path, gpu: NativeDevice, loras: dict[str, Path], monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    with wgemma.load(blob, device=gpu, adapter=loras["first"]) as model:
        run(backend_of(model).engine.make_settings(3))
        expected, allocated, plenty = greedy(model), gpu.allocated, gpu.buffer

        def scarce(size: int, name: str) -> NativeBuffer:
            if name == label:
                raise wgemma.OutOfMemory("there is no room.")
            return plenty(size, name)

        monkeypatch.setattr(gpu, "buffer", scarce)
        with pytest.raises(wgemma.OutOfMemory):
            model.load_adapter(loras["second"])
        monkeypatch.undo()
        assert gpu.allocated == allocated and list(model.adapters) == ["first"]
        assert greedy(model) == expected


def test_unloading_and_loading_again_gives_all_memory_back(
    blob: Path, gpu: NativeDevice, loras: dict[str, Path]
) -> None:
    before = gpu.allocated
    with wgemma.load(blob, device=gpu) as model:
        bare = greedy(model)
        model.load_adapter(loras["first"], "x")
        adapted = greedy(model)
        most = gpu.allocated
        for _ in range(3):
            model.load_adapter(loras["first"], "x")
            assert greedy(model) == adapted
        assert gpu.allocated <= most
        model.unload_adapter("x")
        assert model.adapters == {} and greedy(model) == bare
        with pytest.raises(wgemma.SettingsError, match="no adapter called 'x'"):
            model.unload_adapter("x")
    assert gpu.allocated == before


def test_chats_take_adapters_and_go_on_under_them(model: wgemma.Model) -> None:
    messages = [{"role": "user", "content": "hello"}]
    first = list(model.chat(messages, max_tokens=4, seed=1, adapter="first"))
    again = list(model.chat(messages, max_tokens=4, seed=1, adapter="first"))
    assert [part.text for part in first] == [part.text for part in again]
    assert again[-1].usage is not None and again[-1].usage.reused > 0
    other = list(model.chat(messages, max_tokens=4, seed=1, adapter=None))
    assert other[-1].usage is not None and other[-1].usage.reused == 0


def test_a_saved_session_remembers_its_adapters(model: wgemma.Model, tmp_path: Path, loras: dict[str, Path]) -> None:
    reply = greedy(model, adapter={"second": 0.5})
    model.save(tmp_path / "chat")
    model.reset()
    model.restore(tmp_path / "chat")
    assert reused(model, adapter={"second": 0.5}) == len(PROMPT) - 1
    assert greedy(model, adapter={"second": 0.5}) == reply
    model.reset()
    model.restore(tmp_path / "chat")
    assert reused(model, adapter="first") == 0
    model.unload_adapter("second")
    with pytest.raises(wgemma.SessionError, match="an adapter that is not loaded"):
        model.restore(tmp_path / "chat")
    model.load_adapter(loras["second"], "by another name")
    model.restore(tmp_path / "chat")
    assert greedy(model, adapter={"by another name": 0.5}) == reply


def test_replies_with_different_adapters_run_together(model: wgemma.Model) -> None:
    choices = ("first", "second", None, {"first": -1.0, "second": 0.5})
    expected = [greedy(model, adapter=choice) for choice in choices]
    model.reset()
    streams = [model.generate(PROMPT, max_tokens=4, temperature=0, adapter=choice) for choice in choices]
    said: list[list[int]] = [[] for _ in choices]
    for _ in range(4):
        for tokens, stream in zip(said, streams, strict=True):
            tokens.append(next(stream).id)
    assert said == expected


def test_rows_get_settings_of_their_own_and_only_changes_are_uploaded(
    model: wgemma.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, device = backend_of(model).engine, backend_of(model).device
    first, second, both = (engine.adapters.choose(choice) for choice in ("first", "second", ALL))
    engine.weigh(both)
    run(engine.make_settings(4))
    lows = engine.at_work_by_row([BARE, first])
    assert lows is engine.row_lows and lows is not None and lows.rows == 4
    assert engine.at_work_by_row([BARE, BARE]) is None and engine.at_work(first) is engine.lows
    size, uploaded, write = lows.scales.size // 4, [], device.write  # type: ignore[union-attr]

    def spy(buffer: Buffer, offset: int, data: bytes) -> None:
        assert buffer is lows.scales
        uploaded.append(offset // size)
        write(buffer, offset, data)

    monkeypatch.setattr(device, "write", spy)
    for settings, changed in (
        ({0: first, 1: BARE, 3: second}, [0, 3]),
        ({0: first, 1: second, 3: second}, [1]),
        ({0: first, 1: second}, [3]),
        ({0: first, 1: second, 2: both}, [2]),
    ):
        engine.weigh_rows(settings)
        assert sorted(uploaded) == changed
        uploaded.clear()
    monkeypatch.undo()
    scales = np.frombuffer(run(device.read(lows.scales)), np.float32).reshape(4, -1)  # type: ignore[arg-type]
    one = np.frombuffer(run(device.read(engine.lows.scales)), np.float32)  # type: ignore[union-attr, arg-type]
    assert (scales[2] == one).all() and (scales[0] + scales[1] == one).all() and not scales[3].any()
    assert scales[0].any() and scales[1].any()


def test_more_rows_with_settings_record_anew_and_other_adapters_keep_the_rows(
    blob: Path, gpu: NativeDevice, loras: dict[str, Path]
) -> None:
    before = gpu.allocated
    with wgemma.load(blob, device=gpu) as model:
        engine = backend_of(model).engine
        run(engine.make_settings(2))
        adapted = engine.adapted
        model.load_adapter(loras["first"], "x")
        assert engine.row_lows is not None and engine.row_lows.rows == 2
        said, small = greedy(model), gpu.allocated
        run(engine.make_settings(2))
        assert engine.adapted == adapted + 1 and gpu.allocated == small
        run(engine.make_settings(8))
        assert engine.adapted == adapted + 2 and engine.row_lows.rows == 8
        one = engine.lows.scales.size  # type: ignore[union-attr]
        assert gpu.allocated == small + 6 * one
        assert greedy(model) == said
        engine.weigh_rows({7: engine.adapters.choose("x")})
        model.load_adapter(loras["second"], "y")
        assert engine.row_lows.rows == 8
        assert not np.any(np.frombuffer(run(gpu.read(engine.row_lows.scales)), np.float32))  # type: ignore[arg-type]
        model.unload_adapter("x")
        model.unload_adapter("y")
        assert engine.row_lows is None and engine.at_work_by_row([BARE]) is None
    assert gpu.allocated == before


def test_settings_of_more_rows_than_a_binding_holds_are_refused(
    model: wgemma.Model, gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, said = backend_of(model).engine, greedy(model)
    run(engine.make_settings(2))
    lows, adapted, allocated = engine.row_lows, engine.adapted, gpu.allocated
    monkeypatch.setattr(gpu, "limits", Limits(binding=lows.scales.size + 256))  # type: ignore[union-attr]
    with pytest.raises(wgemma.AdapterError, match=r"scales for 64 sequences take .* Load fewer adapters"):
        run(engine.make_settings(64))
    monkeypatch.undo()
    assert (engine.row_lows, engine.adapted, engine.setting_rows, gpu.allocated) == (lows, adapted, 2, allocated)
    assert greedy(model) == said


def test_an_adapter_that_goes_in_the_middle_of_a_reply_is_missed(model: wgemma.Model, loras: dict[str, Path]) -> None:
    """It must not be taken for the bare model, whose keys and values would then pass for the adapter's. Others go on,
    also under an adapter that only gets another name."""
    never = {"logit_bias": dict.fromkeys(model.tokenizer.stop_ids, -100), "max_tokens": 120, "temperature": 0}
    bare, second = (model.generate(PROMPT, adapter=choice, **never) for choice in (None, "second"))
    begun = [[next(reply).id] for reply in (bare, second)]
    under_way = model.generate(PROMPT, adapter="first", **never)
    next(under_way)
    model.load_adapter(loras["second"], "by another name")
    model.unload_adapter("second")
    model.unload_adapter("first")
    with pytest.raises(wgemma.SettingsError, match="unloaded or replaced"):
        list(under_way)
    for reply, tokens, choice in zip((bare, second), begun, (None, "by another name"), strict=True):
        tokens += [piece.id for piece in reply]
        model.reset()
        assert tokens == [piece.id for piece in model.generate(PROMPT, adapter=choice, **never)]


def test_an_adapter_that_goes_before_a_call_is_missed(model: wgemma.Model) -> None:
    waiting = model.generate(PROMPT, adapter="first")
    model.unload_adapter("first")
    with pytest.raises(wgemma.SettingsError, match="no adapter called 'first'"):
        next(waiting)


def test_a_lost_device_gets_its_adapters_back(blob: Path, loras: dict[str, Path]) -> None:
    with wgemma.load(blob, adapter={"x": loras["first"]}) as model:
        expected, logits = greedy(model), model.logits(PROMPT)
        assert np.abs(logits - model.logits(PROMPT, adapter=None)).max() > 0.01
        backend_of(model).device._device.destroy()  # type: ignore[attr-defined]
        assert greedy(model) == expected
        backend_of(model).device._device.destroy()  # type: ignore[attr-defined]
        assert (model.logits(PROMPT) == logits).all()
        backend_of(model).device._device.destroy()  # type: ignore[attr-defined]
        model.load_adapter(loras["second"])
        assert list(model.adapters) == ["x", "second"]


def test_the_reference_device_chooses_the_same(blob: Path, model: wgemma.Model, loras: dict[str, Path]) -> None:
    with wgemma.load(blob, device="reference", adapter=[loras["first"], loras["second"]]) as slow:
        for choice in ("first", None, {"first": -1, "second": 0.5}):
            assert greedy(slow, adapter=choice) == greedy(model, adapter=choice)
            assert np.abs(slow.logits(PROMPT, adapter=choice) - model.logits(PROMPT, adapter=choice)).max() < 0.05
        with pytest.raises(wgemma.AdapterError, match="does not fit"):
            slow.load_adapter(loras["misfit"])


def test_a_damaged_setting_in_a_saved_session_is_refused(model: wgemma.Model, tmp_path: Path) -> None:
    backend = backend_of(model)
    greedy(model)
    model.save(tmp_path / "chat")
    data = bytearray((tmp_path / "chat").read_bytes())
    digest = backend.adapters.choose().key[0][0].encode()
    at = data.index(digest)
    data[at : at + len(digest)] = b"0" * len(digest)
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    (tmp_path / "chat").write_bytes(data)
    with pytest.raises(wgemma.SessionError, match="not loaded"):
        model.restore(tmp_path / "chat")
    with pytest.raises(wgemma.SessionError, match="which adapters"):
        saved._adapter(backend.engine, [["x"]], "chat")


@pytest.mark.parametrize("in_order", [pytest.param(False, marks=pytest.mark.slow), True])
def test_seven_targets_cost_one_dispatch_for_each_input_they_share_or_one_in_all(
    tmp_path: Path, in_order: bool
) -> None:
    write_e2b(tmp_path / "e2b.gguf")
    targets = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    with wgemma.Gguf.open(tmp_path / "e2b.gguf") as gguf:
        tensors = find_tensors(Config.from_gguf(gguf), gguf.tensors)
        shapes = {
            name: t.shape for name, t in tensors.items() if name.startswith("blk.") and name.split(".")[2] in targets
        }
        pairs = {
            name: Pair(16, columns, rows, array("f", bytes(64 * columns)), array("f", bytes(64 * rows)), 1.0)
            for name, (columns, rows) in shapes.items()
        }
        device = FakeDevice(Limits(binding=2 << 30, buffer=4 << 30, storage_buffers=12))
        device.in_order = in_order
        engine = engine_on(device, gguf, Options(ple="gpu"))  # type: ignore[arg-type]
        run(engine.adapt(Adapters().having(AdapterFile("x", pairs, 16.0), "x", 1.0)))
        session, counts = OneSequence(Runner(engine)), {}
        for choice in (None, "x"):
            session.use(engine.adapters.choose(choice))
            list(iterate(session.generate([2, *range(1000, 1020)], Sampling(), 2)))
            tapes = [tape for shape, (tape, _) in session.programs.recorded.items() if shape.rows == 1 and shape.finish]
            counts[choice] = max(tape.dispatches for tape in tapes)
        layers = engine.weights.layers
    assert counts["x"] == counts[None] + (1 if in_order else 4 * len(layers))
