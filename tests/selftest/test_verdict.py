"""A GPU that computes right passes; one that does not is found out, worked around, told of and remembered."""

import importlib.util
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import wgemma
from fake_device import FakeDevice
from one_sequence import OneSequence, engine_on
from real_shapes import write_e2b
from wgemma.embedded import embedded_model
from wgemma.engine.options import Options
from wgemma.engine.runner import Runner
from wgemma.engine.sampling import Recipe, Sampling
from wgemma.files.gguf import Gguf
from wgemma.gpu import shaders
from wgemma.gpu.device import DEFAULT_LIMITS, Limits
from wgemma.gpu.native import NativeDevice
from wgemma.model import forms
from wgemma.model.config import Config
from wgemma.model.matmul import Matmuls, Precision
from wgemma.selftest import problems, verdict
from wgemma.selftest.problems import Problem, answers, problems_of
from wgemma.selftest.verdict import prepare, self_test
from wgemma.sync import iterate, run

MODELS = [
    *("tiny-e2b-Q4_0", "tiny-e2b-Q4_K_M", "tiny-e2b-Q8_0", "tiny-heads-Q4_K_M", "tiny-12b-Q4_K_M", "tiny-31b-F16"),
    *("tiny-26b-a4b-F16", "tiny-26b-a4b-Q4_K_M"),
]
IDS = [2, *range(30, 70)]


@pytest.fixture(autouse=True)
def verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts are kept: a folder of each test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/wgemma/verdicts.json"


@pytest.fixture
def tiny(data: Path) -> Path:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    return data / "ollama-store" / store["gemma4:tiny"]["model"]


@pytest.fixture
def fresh() -> Iterator[Callable[[], NativeDevice]]:
    """Opens devices that know no kernel yet."""
    opened: list[NativeDevice] = []

    def open_one() -> NativeDevice:
        opened.append(NativeDevice(compact=False))
        return opened[-1]

    yield open_one
    for device in opened:
        device.close()


@pytest.fixture
def tests_run(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The adapters of all self-tests from now on."""
    seen: list[str] = []

    async def counted(device: Any, *rest: Any) -> Any:
        seen.append(device.info.name)
        return await self_test(device, *rest)

    monkeypatch.setattr(verdict, "self_test", counted)
    return seen


def misbuild(monkeypatch: pytest.MonkeyPatch, kernel: str, says: str, instead: str) -> None:
    """Breaks a kernel in the variant without run-time checks only, as a bad driver would."""
    build = NativeDevice._module

    def module(self: NativeDevice, name: str, code: str) -> Any:
        if name == kernel and not self.plain(name):
            assert says in code
            code = code.replace(says, instead)
        return build(self, name, code)

    monkeypatch.setattr(NativeDevice, "_module", module)


def misspell(monkeypatch: pytest.MonkeyPatch, file: str, says: str, instead: str) -> None:
    """Breaks a shader for good."""
    sound = shaders._source

    def source(name: str) -> tuple[str, ...]:
        text = "\n".join(sound(name))
        assert name != file or says in text
        return tuple((text.replace(says, instead) if name == file else text).splitlines())

    monkeypatch.setattr(shaders, "_source", source)


def prepared(device: NativeDevice, path: Path, kv: str = "f16") -> None:
    with Gguf.open(path) as file:
        run(prepare(device, Config.from_gguf(file), file.tensors, Options(kv=kv)))


# -- a sound GPU


@pytest.mark.parametrize(
    ("model", "options"),
    [
        *((model, Options()) for model in MODELS),
        ("tiny-heads-Q4_K_M", Options(kv="f32")),
        *((model, Options(precision="fast")) for model in MODELS if "Q" in model),
        *((model, Options(slots=16)) for model in ("tiny-e2b-Q4_K_M", "tiny-31b-F16")),
    ],
)
@pytest.mark.parametrize("where", ["gpu", "floor"])
def test_every_kind_of_model_passes(
    shared: Path, request: pytest.FixtureRequest, model: str, where: str, options: Options
) -> None:
    device = request.getfixturevalue(where)
    before = device.allocated
    with Gguf.open(shared / f"models/{model}.gguf") as file:
        config = Config.from_gguf(file)
        assert run(self_test(device, config, problems_of(config, file.tensors, options), options)).wrong == frozenset()
    assert device.allocated == before


LARGE = Limits(binding=2 << 30, buffer=4 << 30, invocations=1024)


@pytest.mark.parametrize(
    ("model", "limits", "precision", "slots"),
    [
        *((model, limits, "exact", 1) for limits in (DEFAULT_LIMITS, LARGE) for model in MODELS),
        *((model, DEFAULT_LIMITS, "exact", 16) for model in MODELS),
        ("real e2b", LARGE, "exact", 64),
        *((model, LARGE, "fast", 1) for model in ("tiny-e2b-Q4_K_M", "tiny-26b-a4b-Q4_K_M")),
        *(
            pytest.param("real e2b", *more, marks=pytest.mark.slow)
            for more in ((DEFAULT_LIMITS, "exact", 1), (LARGE, "fast", 16), (LARGE, "fast", 64))
        ),
    ],
)
def test_only_pipelines_are_made_that_the_model_needs_anyway(
    request: pytest.FixtureRequest, tmp_path: Path, model: str, limits: Limits, precision: Precision, slots: int
) -> None:
    path = tmp_path / "e2b.gguf"
    if model == "real e2b":
        write_e2b(path)
    else:
        path = request.getfixturevalue("shared") / f"models/{model}.gguf"
    testing, working = FakeDevice(limits), FakeDevice(limits)
    testing.subgroup_size = working.subgroup_size = 32 if precision == "fast" else 1
    options = Options(ple="gpu", precision=precision, slots=slots)
    with Gguf.open(path) as file:
        config = Config.from_gguf(file)
        run(self_test(testing, config, problems_of(config, file.tensors, options), options))  # type: ignore[arg-type]
        session = OneSequence(Runner(engine_on(working, file, options)))  # type: ignore[arg-type]
        for ids in (IDS, [2] * 100):  # a short prompt and a long one
            list(iterate(session.generate(ids, Sampling(), 3)))
        list(iterate(session.logits([2] * 100)))  # every layer, where a prompt stops at the last keys and values
        if slots > 1:
            run(session.runner.widen(slots))
            for rows in {min(slots, 16), slots}:
                run(session.programs.get(rows, 200, Recipe(), None))
    assert testing.kernels.keys() <= working.kernels.keys()
    tested = {name for name, _ in testing.kernels}
    assert ("tile_bytes" in tested) == (precision == "fast")
    assert ("add_up" in tested) == (model == "real e2b")
    assert ("middle" in tested) == (slots > 8)


def test_the_answers_are_those_of_the_twins() -> None:
    tool = make_answers()
    text = (files("wgemma.selftest") / "answers.json").read_text("utf-8")
    assert tool.main() == text
    assert len(text) < 90_000
    assert {problem.answer for problem in tool.every_problem()} == answers().keys()


def make_answers() -> ModuleType:
    path = Path(__file__).parent.parent.parent / "tools/make_answers.py"
    spec = importlib.util.spec_from_file_location("make_answers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- a GPU that computes wrong


# (model, kernel that is blamed, file, what it says, what it says instead)
BROKEN = [
    ("tiny-e2b-Q4_K_M", "repack", "k_scales", "(low & 15u)", "(low & 7u)"),
    ("tiny-e2b-Q4_K_M", "embed", "embed", "params.scale * w.h", "w.h"),
    ("tiny-e2b-Q4_K_M", "activate", "gelu", "0.044715", "0.05"),
    ("tiny-e2b-Q4_K_M", "matvec", "softcap", "clamp(y / cap", "clamp(y"),
    ("tiny-e2b-Q4_K_M", "ple", "ple", "0.70710678", "0.7"),
    ("tiny-e2b-Q4_K_M", "kv", "kv", "norm[j + HALF]", "norm[j]"),
    ("tiny-e2b-Q4_K_M", "attention", "rotary", "far.x * near.x - far.y * near.y", "near.x"),
    ("tiny-e2b-Q4_K_M", "attention_few", "attention_few", "low{{h}} *= shrink;", ""),
    ("tiny-e2b-Q4_K_M", "attention_join", "attention_join", "share{{i}} * sum{{i}}", "sum{{i}}"),
    ("tiny-e2b-Q4_K_M", "sample", "candidates", "prefix = (prefix << 8u) |", "prefix = (prefix << 8u) &"),
    ("tiny-e2b-Q4_K_M", "sample", "candidates", "listed_tokens[at] = 4u", "listed_tokens[at] = 5u"),
    ("tiny-e2b-Q4_K_M", "sample", "sample", "put(k{{i}}[j], 4u", "put(k{{i}}[j], 5u"),
    ("tiny-e2b-Q4_K_M", "sample", "sample", "rows[slot] =", "rows[0] ="),
    ("tiny-e2b-Q4_K_M", "sample", "sample", "settings[own_slot].seed_low", "settings[0].seed_low"),
    ("tiny-e2b-Q4_K_M", "peaks", "peaks", "let peak = largest(keys);", "let peak = keys.x;"),
    ("tiny-26b-a4b-F16", "experts_norm", "experts_norm", "u * params.rows * quads", "u * quads"),
    ("tiny-26b-a4b-F16", "experts_join", "experts_join", "u < params.slots);", "u + 1u < params.slots);"),
    ("tiny-26b-a4b-F16", "route", "route", " / total;", ";"),
    ("tiny-26b-a4b-F16", "experts_matvec", "experts_matvec", " * weights[at]", ""),
    ("tiny-26b-a4b-F16", "tile", "tile", "pair{{j}} / params.share", "pair{{j}} / 2u"),
    ("tiny-26b-a4b-F16", "group", "group", "var at = start + sums.x;", "var at = start;"),
]
# The same of a model that takes many sequences, or as if it were so large that fast products are in the middle.
BROKEN_MIDDLE: list[tuple[str, str, str, str, Precision, int]] = [
    ("tiny-e2b-Q4_K_M", "middle", "finish(group.z, group.y * {{ROWS}}u + row", "finish(group.z, row", "exact", 64),
    ("tiny-e2b-Q4_K_M", "middle", "bitcast<vec4<u32>>(w.h)", "bitcast<vec4<u32>>(w.g)", "exact", 16),
    ("tiny-e2b-Q4_K_M", "middle", "result = softcap(result, params.cap);", "", "exact", 16),
    ("tiny-31b-F16", "middle", "gelu(sums.z) * sums.w", "gelu(sums.z) * sums.y", "exact", 16),
    ("tiny-e2b-Q4_K_M", "middle", "part{{j}}, next, end)", "part{{j}}, start, end)", "fast", 64),
    ("tiny-e2b-Q4_K_M", "middle", "tails.yz, room[at + 3u]", "tails.yz, room[at]", "fast", 8),
    ("tiny-e2b-Q4_K_M", "middle", "put_block((r * params", "put_block((row * params", "fast", 64),
    ("tiny-e2b-Q4_K_M", "middle", "room[at + 2u * {{i}}u].xy", "room[at + 2u * {{i}}u].yx", "fast", 4),
]
# The same of a model that is to be fast.
BROKEN_FAST = [
    ("tiny-e2b-Q4_K_M", "to_bytes", "rounded_block", "sum_of(n4, n5, n6, n7))", "sum_of(n0, n1, n2, n3))"),
    ("tiny-e2b-Q4_K_M", "tile_bytes", "tile_bytes", "fetch(own_w, block + 1u)", "fetch(own_w, block)"),
    ("tiny-e2b-Q8_0", "tile_bytes", "one_scale", "scale_of(raw), 0.0", "1.0, 0.0"),
]


@pytest.mark.parametrize(
    ("model", "kernel", "file", "says", "instead", "precision"),
    [*((*broken, "exact") for broken in BROKEN), *((*broken, "fast") for broken in BROKEN_FAST)],
)
def test_a_kernel_that_is_wrong_is_found(
    shared: Path,
    fresh: Callable[[], NativeDevice],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    kernel: str,
    file: str,
    says: str,
    instead: str,
    precision: Precision,
) -> None:
    misspell(monkeypatch, file, says, instead)
    with Gguf.open(shared / f"models/{model}.gguf") as gguf:
        config = Config.from_gguf(gguf)
        options = Options(precision=precision)
        wrong = run(self_test(fresh(), config, problems_of(config, gguf.tensors, options), options)).wrong
    assert kernel in wrong


@pytest.mark.parametrize(("model", "file", "says", "instead", "precision", "slots"), BROKEN_MIDDLE)
def test_a_product_of_several_sequences_that_is_wrong_is_found(
    shared: Path,
    fresh: Callable[[], NativeDevice],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    file: str,
    says: str,
    instead: str,
    precision: Precision,
    slots: int,
) -> None:
    for name in ("WORK", "MADE_WORK"):
        monkeypatch.setattr(problems, name, 0)
    monkeypatch.setattr(Matmuls, "work", (0, 0))
    monkeypatch.setattr(forms, "ROUNDING_GRID", 1)
    options = Options(precision=precision, slots=slots)
    with Gguf.open(shared / f"models/{model}.gguf") as gguf:
        config = Config.from_gguf(gguf)
        wanted = [problem for problem in problems_of(config, gguf.tensors, options) if problem.kernel == "middle"]
        assert wanted and not run(self_test(fresh(), config, wanted, options)).wrong
        misspell(monkeypatch, file, says, instead)
        assert "middle" in run(self_test(fresh(), config, wanted, options)).wrong


def test_what_is_joined_in_bytes_for_several_sequences_is_tested_with_the_product_that_reads_it(
    tiny: Path, fresh: Callable[[], NativeDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem("middle", "joined", kind="Q4_K", columns=512, head=128, fine=True, n=1 << 16, rows=8)
    options = Options(precision="fast")
    with Gguf.open(tiny) as gguf:
        config = Config.from_gguf(gguf)
    assert not run(self_test(fresh(), config, [problem], options)).wrong
    misspell(monkeypatch, "attention_join", "(first_column / 32u + thread,", "(first_column / 64u + thread,")
    assert "middle" in run(self_test(fresh(), config, [problem], options)).wrong


def test_a_model_for_one_sequence_at_a_time_has_no_product_of_several_tested(shared: Path) -> None:
    with Gguf.open(shared / "models/tiny-e2b-Q4_K_M.gguf") as gguf:
        config = Config.from_gguf(gguf)
        one, eight, many = (problems_of(config, gguf.tensors, Options(slots=slots)) for slots in (1, 8, 9))
    assert one == eight
    assert {problem.kernel for problem in many} - {problem.kernel for problem in one} == {"middle"}


def test_a_model_with_long_rows_has_their_sums_in_parts_tested(
    fresh: Callable[[], NativeDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    misspell(monkeypatch, "add_up", "s < params.shares", "s + 1u < params.shares")
    path = embedded_model()
    assert path is not None
    with Gguf.open(path) as gguf:
        config = Config.from_gguf(gguf)
        wrong = run(self_test(fresh(), config, problems_of(config, gguf.tensors, Options()), Options())).wrong
    assert wrong == {"tile", "add_up"}


@pytest.mark.parametrize(
    ("kernel", "says", "instead"), [("tile", "s3 = more", "s2 = more"), ("attention_few", "low0 *= shrink;", "")]
)
def test_a_kernel_that_is_wrong_becomes_plain_and_the_model_computes_right(
    tiny: Path,
    gpu: NativeDevice,
    fresh: Callable[[], NativeDevice],
    tests_run: list[str],
    verdicts: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernel: str,
    says: str,
    instead: str,
) -> None:
    with wgemma.load(tiny, device=gpu) as model:
        expected = model.logits(IDS)
    verdicts.unlink()
    tests_run.clear()
    misbuild(monkeypatch, kernel, says, instead)
    device = fresh()
    with caplog.at_level(logging.WARNING), wgemma.load(tiny, device=device) as model:
        assert np.abs(model.logits(IDS) - expected).max() < 1e-3
    assert len(tests_run) == 2
    assert device.plain(kernel) and not device.plain("matvec")
    told = caplog.text
    assert kernel in told and device.info.name in told and "plain variant" in told
    again = fresh()
    with wgemma.load(tiny, device=again) as model:
        assert np.abs(model.logits(IDS) - expected).max() < 1e-3
    assert len(tests_run) == 2  # it was known
    assert again.plain(kernel)


def test_a_software_adapter_that_passes_wrong_vectors_around_passes_none(
    tiny: Path, gpu: NativeDevice, verdicts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wgemma.load(tiny, device=gpu) as model:
        expected = model.logits([2] * 20)
    verdicts.unlink()
    misspell(monkeypatch, "pass_around", "subgroupBroadcast(own, {{l}}u)", "subgroupBroadcast(own, 0u)")
    device = NativeDevice(compact=True)
    with wgemma.load(tiny, device=device) as model:
        assert np.abs(model.logits([2] * 20) - expected).max() < 1e-3
    assert device.plain("direct")
    device.close()


def test_a_kernel_that_is_wrong_either_way_ends_the_loading(
    tiny: Path,
    fresh: Callable[[], NativeDevice],
    verdicts: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    misspell(monkeypatch, "tile", "near, far, x_tile", "near, near, x_tile")
    device = fresh()
    with pytest.raises(wgemma.DeviceError, match=r"wrong numbers in tile, .*newer driver.*reference.*doctor --sweep"):
        wgemma.load(tiny, device=device)
    assert device.allocated == 0
    assert not verdicts.exists()


@pytest.mark.parametrize("builds", [misbuild, misspell])
def test_a_product_of_several_sequences_that_is_wrong_becomes_plain_or_is_avoided(
    tiny: Path,
    fresh: Callable[[], NativeDevice],
    tests_run: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    builds: Callable[..., None],
) -> None:
    builds(monkeypatch, "middle", "return x[from_", "return 2u * x[from_")
    options = Options(slots=16)
    with Gguf.open(tiny) as file, caplog.at_level(logging.WARNING):
        config = Config.from_gguf(file)
        for device in (fresh(), fresh()):  # the second time it is known
            able = run(prepare(device, config, file.tensors, options))
            assert able == replace(options, middle=builds is misbuild)
            assert device.plain("middle") and not device.plain("tile")
        assert len(tests_run) == 2 and device.pipelines == 0
        runner = Runner(engine_on(device, file, able))
        run(runner.widen(16))
        run(runner.programs.get(16, 200, Recipe(), None))
        kernels = {name for name, _ in device._kernels}
        assert ("middle" in kernels, "tile" in kernels) == (able.middle, not able.middle)
        runner.free()
        runner.engine.free()
    assert ("plain variant" in caplog.text, "do without it" in caplog.text) == (able.middle, not able.middle)


def test_a_device_that_is_opened_again_keeps_its_plain_kernels(fresh: Callable[[], NativeDevice]) -> None:
    device = fresh()
    count = device.kernel("clear")
    device.distrust(["clear"])
    assert device.kernel("clear") is not count
    again = run(device.reopen())
    assert again.plain("clear") and not again.plain("tile")
    again.close()


# -- the memory of verdicts


def test_a_verdict_is_remembered_per_problem_set_and_version(
    tiny: Path, fresh: Callable[[], NativeDevice], tests_run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(fresh(), tiny)
    assert len(tests_run) == 1
    second = fresh()
    prepared(second, tiny)
    assert len(tests_run) == 1 and second.pipelines == 0
    prepared(second, tiny, kv="f32")
    assert len(tests_run) == 2
    monkeypatch.setattr(verdict, "__version__", "99")
    prepared(second, tiny)
    assert len(tests_run) == 3
    prepared(second, tiny)
    assert len(tests_run) == 3


def test_another_driver_or_fewer_features_are_tested_again(tiny: Path, tests_run: list[str]) -> None:
    for limits in (None, DEFAULT_LIMITS):
        device = NativeDevice(limits=limits, features=limits is None, compact=False)
        prepared(device, tiny)
        device.close()
    assert len(tests_run) == 2


def test_what_holds_with_the_checks_on_is_not_believed_without(
    tiny: Path, fresh: Callable[[], NativeDevice], tests_run: list[str], verdicts: Path
) -> None:
    checked = NativeDevice(trusted=False, compact=False)
    prepared(checked, tiny)
    checked.close()
    assert not verdicts.exists()
    prepared(fresh(), tiny)
    assert len(tests_run) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": [1]}', "\xff\xfe", "[" * 100_000])
def test_a_file_of_verdicts_that_cannot_be_understood_is_written_anew(
    tiny: Path, fresh: Callable[[], NativeDevice], tests_run: list[str], verdicts: Path, text: str
) -> None:
    verdicts.parent.mkdir(parents=True)
    verdicts.write_bytes(text.encode("latin-1"))
    device = fresh()
    prepared(device, tiny)
    prepared(device, tiny)
    assert len(tests_run) == 1
    assert list(json.loads(verdicts.read_text()).values()) == [[]]
    assert [file.name for file in verdicts.parent.iterdir()] == [verdicts.name]


def test_where_nothing_can_be_written_the_test_is_run_each_time(
    tiny: Path, fresh: Callable[[], NativeDevice], tests_run: list[str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    device = fresh()
    prepared(device, tiny)
    prepared(device, tiny)
    assert len(tests_run) == 2


def test_old_verdicts_give_way_to_new_ones(verdicts: Path) -> None:
    for number in range(verdict.MOST_VERDICTS + 5):
        run(verdict._remember(f"adapter {number}", ["tile"]))
    kept = json.loads(verdicts.read_text())
    assert len(kept) == verdict.MOST_VERDICTS and "adapter 0" not in kept
    assert run(verdict._read())["adapter 50"] == ["tile"]
