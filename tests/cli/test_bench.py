"""`wgemma bench` on a tiny model: consistent figures on any machine."""

import json
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from wgemma.cli import bench_sequences, main, parser
from wgemma.cli.bench import stream_bandwidth
from wgemma.cli.bench_reads import Read, grouped
from wgemma.gpu.native import NativeDevice, adapters
from wgemma.gpu.tape import Tape

ADAPTERS = adapters()
pytestmark = pytest.mark.skipif(not ADAPTERS, reason="there is no WebGPU adapter")
timed = pytest.mark.skipif(
    not ADAPTERS or "timestamp-query" not in ADAPTERS[0].features, reason="the adapter lacks timestamp-query"
)

SHORT = ["--prompt", "16,40", "--depth", "0,40", "--tokens", "8", "--repeat", "1", "--context", "128"]


@pytest.fixture
def tiny(data: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model with per-layer embeddings: the shared one, or the one in the repository."""
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    path = data.parents[2] / "shared" / "fixtures" / "models" / "tiny-e2b-Q4_K_M.gguf"
    return str(path) if path.is_file() else "gemma4:tiny"


@timed
@pytest.mark.parametrize("compact", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_figures_fit_each_other(
    compact: bool, tiny: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wgemma.cli.bench.open_device", lambda: NativeDevice(compact=compact))
    assert main(["bench", tiny, *SHORT, "--profile", "--json"]) == 0
    printed = capfd.readouterr()
    report = json.loads(printed.out)
    assert report["load"]["bytes"] == pytest.approx(1e6 * report["load"]["seconds"] * report["load"]["mb_per_s"])
    assert (report["context"], report["kv"], report["notes"]) == (128, "f16", [])
    assert report["stream_gb_per_s"] > 0
    assert [prefill["tokens"] for prefill in report["prefill"]] == [16, 40]
    for prefill in report["prefill"]:
        assert prefill["first_token_s"] > prefill["tokens"] / prefill["tokens_per_s"] > 0
    assert [decode["depth"] for decode in report["decode"]] == [0, 40]
    for decode in report["decode"]:
        check_decode(decode, report["stream_gb_per_s"], "direct" if compact else "matvec")
    shallow, deep = report["decode"]
    assert shallow["weight_bytes"] == deep["weight_bytes"] <= report["load"]["bytes"] * 1.2
    assert shallow["kv_bytes"] < deep["kv_bytes"]
    assert "measuring 8 tokens at depth 40" in printed.err
    assert "XDG_RUNTIME_DIR" not in printed.err


def check_decode(decode: dict[str, Any], stream: float, product: str) -> None:
    read = decode["weight_bytes"] + decode["kv_bytes"]
    assert decode["gb_per_s"] == pytest.approx(read * decode["tokens_per_s"] / 1e9)
    assert decode["share"] == pytest.approx(decode["gb_per_s"] / stream)
    assert 0 < decode["share"] < 1
    assert decode["host_ms"] > 0
    kernels = decode["profile"]
    assert sum(kernel["count"] for kernel in kernels) == decode["dispatches"]
    assert sum(kernel["share"] for kernel in kernels) == pytest.approx(1)
    looking = "attention" if product == "direct" else "attention_few"
    assert {product, looking, "sample"} <= {kernel["kernel"] for kernel in kernels}
    for kernel in kernels:
        assert kernel["microseconds"] >= 0
        assert is_kernel(kernel["kernel"])
        assert (kernel["gb_per_s"] is None) == (kernel["what"] == "")


def is_kernel(name: str) -> bool:
    return (files("wgemma.kernels") / f"{name}.wgsl").is_file()


def test_people_get_tables_and_a_line_for_what_does_not_fit(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--prompt", "16,4000", "--depth", "0,4000", "--tokens", "2", "--repeat", "1", "--context", "64"]
    assert main(["bench", tiny, *arguments]) == 0
    printed = capsys.readouterr()
    assert "a prompt of 4000 tokens was left out: the context has room for 62." in printed.err
    assert "a depth of 4000 tokens was left out: the context has room for 55." in printed.err
    lines = printed.out.splitlines()
    prompt = lines.index("PROMPT  TOKENS/S  FIRST TOKEN")
    assert lines[prompt + 1].split()[0] == "16"
    assert lines[prompt + 2] == ""
    assert lines[prompt + 3].startswith("DEPTH  TOKENS/S  READ/TOKEN")
    assert len(lines) == prompt + 5


@pytest.mark.slow
def test_the_towers_are_timed_where_there_are_some(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.setattr("wgemma.cli.bench_towers.BUDGETS", (140,))
    monkeypatch.setattr("wgemma.cli.bench_towers.LONGEST", 16_000)
    quick = ["--prompt", "8", "--depth", "0", "--tokens", "2", "--repeat", "1", "--context", "64", "--image", "--audio"]
    assert main(["bench", "gemma4:tiny", *quick, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [look["tokens"] for look in report["images"]] == [126]
    assert all(look["ms"] > 0 for look in report["images"])
    (sound,) = report["audio"]
    assert (sound["seconds"], sound["tokens"]) == (1, 25)
    assert sound["times_real_time"] == pytest.approx(1e3 / sound["ms"])
    assert main(["bench", "gemma4:legacy", *quick]) == 0
    printed = capsys.readouterr()
    assert "a sound was left out: gemma4:legacy cannot hear: it has no audio tower." in printed.err
    assert "loading: 110 %" not in printed.err
    assert "IMAGE       TIME" in printed.out and "REAL TIME" not in printed.out


def test_an_adapters_cost_is_told(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    quick = ["--prompt", "8", "--depth", "0", "--tokens", "2", "--repeat", "1", "--context", "64", "--adapter", "4"]
    assert main(["bench", "gemma4:tiny", *quick, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (lora,) = report["lora"]
    assert (lora["rank"], lora["depth"]) == (4, 0)
    assert lora["cost"] == pytest.approx(lora["bare_tokens_per_s"] / lora["tokens_per_s"] - 1)
    more = lora["dispatches"] - report["decode"][0]["dispatches"]
    assert 4 * 4 <= more <= 2 * 7 * 4  # at least one for each input of 4 layers, at most two for each target
    assert parser().parse_args(["bench", "gemma4:tiny", "--adapter"]).adapter == 16


def test_several_sequences_are_measured_by_themselves_and_by_their_reader(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--prompt", "8", "--depth", "0", "--tokens", "3", "--repeat", "1", "--context", "64", "--sequences", "1,3"]
    assert main(["bench", tiny, *quick, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(s["sequences"], s["prompt"], s["tokens"]) for s in report["sequences"]] == [(1, 8, 3), (3, 8, 3)]
    for measured in report["sequences"]:
        assert min(measured["prefill_s"], measured["tokens_per_s"], measured["streamed_tokens_per_s"]) > 0


def test_tokens_count_once_all_sequences_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgemma.cli.bench_sequences.clock", count().__next__)
    arrivals = (index for index in [0, 0, 0, 1, 0, 1, 0, 1, 1, 1])
    first, speed = bench_sequences.timed(arrivals, 2, 2)
    assert first == 1
    assert speed == 4 / 4
    assert list(arrivals) == []


def test_an_adapter_without_timestamps_says_so(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wgemma.cli.bench.open_device", lambda: NativeDevice(features=False))
    assert main(["bench", tiny, *SHORT, "--prompt", "8", "--depth", "0", "--profile", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "lacks timestamp-query" in report["notes"][0]
    assert report["decode"][0]["profile"] == []


@pytest.mark.parametrize("options", [["--prompt", "0"], ["--depth", "1,x"], ["--repeat", "-1"], ["--kv", "q4"]])
def test_a_wrong_number_is_exit_code_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "gemma4:tiny", *options])
    assert ended.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err


def test_times_are_added_up_by_kernel_and_what_it_reads() -> None:
    q4 = Read("Q4_K 256×512", weights=3000)
    found = grouped([("matvec", 1000), ("sample", 4000), ("matvec", 2000)], [q4, Read(), q4])
    assert [(k.kernel, k.what, k.count, k.microseconds) for k in found] == [
        ("sample", "", 1, 4),
        ("matvec", "Q4_K 256×512", 2, 3),
    ]
    assert [k.gb_per_s for k in found] == [None, 2.0]
    assert sum(k.share for k in found) == pytest.approx(1)


def test_streaming_gives_all_memory_back() -> None:
    device = NativeDevice()
    before = device.allocated
    assert stream_bandwidth(device) > 0
    assert device.allocated == before
    device.close()


@timed
@pytest.mark.parametrize("inside", [True, False])
def test_a_profile_carries_the_commands_out(inside: bool) -> None:
    """Even if a GPU cannot take timestamps inside a pass."""
    device = NativeDevice()
    if not inside:
        device.features -= {"timestamp-query-inside-passes"}
    words, copied = device.buffer(16, "words"), device.buffer(16, "copy")
    device.write(words, 0, bytes(range(16)))
    tape = Tape(device, "test")
    tape.copy(words, 0, copied, 0, 16)
    for _ in range(2):
        tape.run("stream", [1], {"words": device.buffer(32 << 10, "stream"), "found": device.buffer(4, "found")})
    times = device.profile(tape.commands, repeats=2)
    assert [name for name, _ in times] == ["stream", "stream"]
    assert all(nanoseconds > 0 for _, nanoseconds in times)
    assert device._device.queue.read_buffer(copied.handle).tobytes() == bytes(range(16))
    device.close()
