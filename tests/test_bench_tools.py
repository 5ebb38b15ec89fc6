"""The benchmark and plotting tools, run as a developer would, on the embedded model with little work."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from wgemma.files.gguf import Gguf
from wgemma.gpu.native import adapters

BENCH = Path(__file__).resolve().parent.parent / "bench"
MODEL = str(files("wgemma.embedded") / "wgemma-tiny.gguf")
ADAPTERS = adapters()
needs_adapter = pytest.mark.skipif(not ADAPTERS, reason="there is no WebGPU adapter")
timed = pytest.mark.skipif(
    not ADAPTERS or "timestamp-query" not in ADAPTERS[0].features, reason="the adapter has no timestamp-query"
)

KERNELS = [  # microseconds of kernels in a token of a thousand
    {"kernel": "norm", "what": "", "count": 4, "microseconds": 180.0, "share": 0.18, "gb_per_s": None},
    {"kernel": "matvec", "what": "Q4_K 256×512", "count": 8, "microseconds": 805.0, "share": 0.805, "gb_per_s": 2.0},
    {"kernel": "peaks", "what": "", "count": 1, "microseconds": 7.0, "share": 0.007, "gb_per_s": None},
    {"kernel": "embed", "what": "Q6_K", "count": 1, "microseconds": 8.0, "share": 0.008, "gb_per_s": 1.0},
]
REPORT = {
    "model": "some/<model>.gguf",
    "wgemma": "0",
    "adapter": {"name": "A & B", "driver": "1"},
    "precision": "fast",
    "decode": [
        {"depth": 0, "tokens_per_s": 1000.0, "profile": KERNELS},
        {"depth": 64, "tokens_per_s": 900.0, "profile": KERNELS[:2]},
    ],
}


def python(*arguments: str | Path, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done


def drawn(file: Path, shape: str, kind: str) -> list[ElementTree.Element]:
    """The shapes of one kind in a drawing, which has to be XML."""
    found = ElementTree.parse(file).getroot().iter(f"{{http://www.w3.org/2000/svg}}{shape}")
    return [one for one in found if one.get("class") == kind]


def words(file: Path) -> list[str]:
    return [one.text or "" for one in ElementTree.parse(file).getroot().iter("{http://www.w3.org/2000/svg}text")]


def test_mix_writes_a_model_of_many_types_or_of_one(tmp_path: Path) -> None:
    mixed, one = tmp_path / "mixed.gguf", tmp_path / "one.gguf"
    assert "bits per weight" in python(BENCH / "mix.py", MODEL, mixed).stdout
    python(BENCH / "mix.py", MODEL, one, "--type", "IQ3_S")
    with Gguf.open(MODEL) as old, Gguf.open(mixed) as new, Gguf.open(one) as same:
        assert {"Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"} <= {tensor.type for tensor in new.tensors.values()}
        assert "IQ3_S" in {tensor.type for tensor in same.tensors.values()}
        assert {name: t.shape for name, t in new.tensors.items()} == {name: t.shape for name, t in old.tensors.items()}


@pytest.mark.slow
@needs_adapter
def test_types_are_compared_with_q4_k() -> None:
    lines = python(BENCH / "kernels.py", "--quick", "--types", "IQ4_XS,Q3_K").stdout.splitlines()
    assert lines[1].endswith("of Q4_K")
    rows = [line.split() for line in lines[2:]]
    assert [row[1] for row in rows] == ["Q4_K", "IQ4_XS", "Q3_K"] * (len(rows) // 3)
    assert all(row[-1] == "100%" for row in rows[::3])


@pytest.mark.slow
@needs_adapter
def test_growth_measures_every_size_and_draws_a_mark_for_each(tmp_path: Path) -> None:
    sizes = ["--depths", "64,0,65536", "--rows", "1,2,5", "--prompts", "16,64", "--sequences", "1,2"]
    done = python(BENCH / "growth.py", MODEL, *sizes, "--tokens", "4", "--repeat", "1", "--out", tmp_path / "out")
    written = sorted((tmp_path / "out").iterdir())
    assert [file.suffix for file in written] == [".json", ".svg"]
    assert all(file.name.startswith("growth-") and file.stem.endswith("-wgemma-tiny") for file in written)
    report: dict[str, Any] = json.loads(written[0].read_text())
    assert report["model"] == "wgemma-tiny"
    assert report["precision"] == "fast"
    assert {"date", "adapter", "driver", "wgemma", "context", "stream_gb_per_s"} <= report.keys()
    assert [one["depth"] for one in report["decode"]] == [0, 64]
    assert [(one["rows"], one["computed"]) for one in report["passes"]] == [(1, 1), (2, 2), (5, 8)]
    assert [one["tokens"] for one in report["prompts"]] == [16, 64]
    for one in report["decode"] + report["prompts"]:
        assert one["ms_per_token"] == pytest.approx(1e3 / one["tokens_per_s"])
    assert all(one["ms"] > 0 for one in report["passes"])
    assert report["notes"] == ["a depth of 65536 tokens was left out: the context has room for 2039."]
    assert report["notes"][0] in done.stderr
    assert "tokens_per_s" in done.stdout
    assert [(one["sequences"], one["prompt"]) for one in report["together"]] == [(1, 512), (2, 512)]
    assert len(drawn(written[1], "circle", "held")) == 9


@pytest.mark.slow
@needs_adapter
def test_batch_is_compared_with_chat_many() -> None:
    done = python(BENCH / "batch.py", MODEL, "--requests", "40", "--words", "8", "--tokens", "4", "--slots", "8")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["batch"]["requests"] == 40 and not report["batch"]["failed"]
    assert report["batch"]["prompt_tokens"] == report["chat_many"]["prompt_tokens"]
    assert report["batch of chat_many"] > 0


@pytest.mark.slow
@needs_adapter
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_batchs_memory_stays_flat(blob: Path) -> None:
    done = python(BENCH / "batch.py", blob, "--requests", "1500", "--words", "4", "--tokens", "2", "--memory")
    sizes = json.loads(done.stdout)["batch"]["MB resident"]
    assert sizes["in the last"] < sizes["up to the second tenth"] + 25


@timed
def test_a_measured_profile_is_drawn(tmp_path: Path) -> None:
    quick = ["--prompt", "16", "--depth", "0", "--tokens", "2", "--repeat", "1", "--context", "64"]
    printed = python("-m", "wgemma", "bench", MODEL, *quick, "--profile", "--json").stdout
    (tmp_path / "profile.json").write_text(printed)
    python(BENCH / "draw_profile.py", tmp_path / "profile.json", "-o", tmp_path / "img" / "token.svg")
    kinds = json.loads(printed)["decode"][0]["profile"]
    small = sum(kind["share"] < 0.01 for kind in kinds)
    bars = len(kinds) if small < 2 else len(kinds) - small + 1
    assert len(drawn(tmp_path / "img" / "token.svg", "rect", "bar")) == bars


def test_the_longest_kernel_is_first_and_the_small_ones_share_a_bar(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(REPORT))
    python(BENCH / "draw_profile.py", tmp_path / "profile.json", "-o", tmp_path / "token.svg")
    bars = drawn(tmp_path / "token.svg", "rect", "bar")
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert len(widths) == 3
    assert widths[1] / widths[0] == pytest.approx(180 / 805, rel=0.01)
    assert widths[2] / widths[0] == pytest.approx(15 / 805, rel=0.01)
    told = words(tmp_path / "token.svg")
    assert told[0] == "one token of <model> at depth 0, on A & B"
    first = told.index("matvec")
    assert told[first : first + 5] == ["matvec", "Q4_K 256×512", "805", "8", "80.5 %"]
    assert told[-5:] == ["2 others", "", "15", "2", "1.5 %"]


def test_another_depth_can_be_drawn_and_a_missing_one_is_told(tmp_path: Path) -> None:
    profile, out = tmp_path / "profile.json", tmp_path / "token.svg"
    profile.write_text(json.dumps(REPORT))
    python(BENCH / "draw_profile.py", profile, "--depth", "64", "-o", out)
    assert len(drawn(out, "rect", "bar")) == 2
    done = python(BENCH / "draw_profile.py", profile, "--depth", "65", "-o", out, code=1)
    assert "depth 65 was not timed; the file has 0, 64." in done.stderr


def test_a_report_without_a_profile_is_refused_by_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "decode": []}))
    done = python(BENCH / "draw_profile.py", tmp_path / "report.json", "-o", tmp_path / "token.svg", code=1)
    assert "wgemma bench MODEL --profile --json" in done.stderr
    assert "Traceback" not in done.stderr
