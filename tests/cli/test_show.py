"""`wgemma show` describes a model, whatever is in the file."""

import json
from pathlib import Path

import pytest

from gguf_writer import write_gguf
from random_weights import randomised
from range_server import good, serve
from wgemma.cli import main
from wgemma.cli.show import SAMPLE
from wgemma.files.gguf import Gguf
from wgemma.files.locate import locate
from wgemma.text.template import render

HOSTILE = "\x1b]0;owned\x07\x9b2J"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return data / "ollama-store"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def test_the_summary_says_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dict(line.split(maxsplit=1) for line in shown(capsys, "someone/mygemma:v1").splitlines())
    assert lines["model"] == "someone/mygemma:v1"
    assert (lines["architecture"], lines["context"], lines["vocabulary"]) == ("gemma4", "2048", "1024")
    assert lines["capabilities"] == "completion, vision, audio, tools, thinking"
    assert lines["made"] == "from       gemma4:tiny"
    assert lines["system"].startswith("You are a pirate.")
    assert "temperature 0.3" in lines["settings"]


def test_the_mix_of_types_and_the_bits_per_weight_are_shown(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(randomised(shared / "models/tiny-31b-F16.gguf", tmp_path / "model.gguf", "IQ4_XS"))
    record = json.loads(shown(capsys, path, "--json", "--tensors"))
    bits = 8 * sum(tensor["nbytes"] for tensor in record["tensors"]) / record["parameters"]
    assert 4.25 < record["bits_per_weight"] == round(bits, 2) < 5
    line = next(line for line in shown(capsys, path).splitlines() if line.startswith("weights"))
    assert line.split()[1] == "IQ4_XS" and line.endswith(f"; {bits:.2f} bits per weight")


def test_the_towers_are_listed_wherever_they_lie(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = shown(capsys, "gemma4:tiny")
    assert "vision tower    1 × 64, " in own and "audio tower     1 × 64, " in own
    beside = shown(capsys, "hf.co/acme/gemma4-micro-GGUF:Q8_0")
    assert "vision tower    1 × 64, " in beside and ", in sha256-" in beside
    assert "audio tower" not in shown(capsys, "gemma4:legacy")
    record = json.loads(shown(capsys, "gemma4:tiny", "--json"))
    assert [(tower["sense"], tower["layers"], tower["width"]) for tower in record["towers"]] == [
        ("vision", 1, 64),
        ("audio", 1, 64),
    ]
    assert all(tower["bytes"] > 10_000 for tower in record["towers"])


def test_the_tensors_are_listed_with_type_and_shape(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in shown(capsys, "gemma4:tiny", "--tensors").split("\n\n")[1].splitlines()]
    assert rows[0] == ["TENSOR", "TYPE", "SHAPE", "SIZE"]
    with Gguf.open(locate("gemma4:tiny").model) as gguf:
        assert [row[:3] for row in rows[1:]] == [
            [tensor.name, tensor.type, "×".join(map(str, tensor.shape))] for tensor in gguf.tensors.values()
        ]


@pytest.mark.parametrize(("model", "size"), [("gemma4:tiny", "small"), ("someone/gemma4-12b:tiny", "large")])
def test_the_template_is_the_one_that_is_sent(model: str, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert render(SAMPLE, size="large" if size == "large" else "small") in shown(capsys, model, "--template")


def test_a_template_of_the_store_is_shown_never_executed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = shown(capsys, "someone/mygemma:v1", "--template")
    assert "(shown, never executed)\n{{ if .System }}<|turn>system" in printed


def test_json_holds_everything(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads((store / "EXPECTED.json").read_text("utf-8"))["models"]
    for name in ("gemma4:tiny", "someone/mygemma:v1", "hf.co/acme/gemma4-micro-GGUF:Q8_0"):
        record = json.loads(shown(capsys, name, "--json", "--tensors", "--template"))
        for key in ("size", "digest", "capabilities", "system", "messages", "licenses"):
            assert record[key] == expected[name][key], key
        assert record["parent"] == expected[name].get("parent")
        assert record["params"] | expected[name]["params"] == record["params"]
        assert record["template"]["store"] == expected[name]["template"]
        assert record["metadata"]["general.architecture"] == "gemma4"
        with Gguf.open(locate(name).model) as gguf:
            assert [tensor["nbytes"] for tensor in record["tensors"]] == [t.nbytes for t in gguf.tensors.values()]


def test_a_path_and_a_url_show_the_same(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(write_gguf({"general.architecture": "gemma4", "general.name": "Here"}, {"t": ("F32", (2,), None)}))
    here = shown(capsys, str(path))
    assert "Here" in here
    with serve(good(path.read_bytes())) as url:
        assert shown(capsys, url).replace(url, str(path)) == here


def test_a_hostile_file_is_shown_without_obeying_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.gguf"
    metadata = {
        "general.architecture": HOSTILE,
        "general.name": HOSTILE,
        "tokenizer.chat_template": "{{ x.__class__ }}" + HOSTILE,
        f"{HOSTILE}.context_length": [1, 2],
        HOSTILE: HOSTILE,
    }
    path.write_bytes(write_gguf(metadata, {f"{HOSTILE}\n": ("F32", (2,), None)}))
    for options in ([], ["--tensors"], ["--template"], ["--json", "--tensors", "--template"]):
        printed = shown(capsys, str(path), *options)
        assert not set(printed) & set("\x1b\x07\x9b")
        assert "owned" in printed


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"general.architecture": [1, 2]},
        {"general.architecture": ["gemma4"], "general.name": True},
        {"general.architecture": "gemma4", "tokenizer.ggml.tokens": 7},
        {"general.architecture": "gemma4", "tokenizer.ggml.tokens": "text", "tokenizer.chat_template": 5},
        {"general.architecture": "gemma4", "gemma4.context_length": ["x"], "gemma4.block_count": float("nan")},
        {"general.architecture": "gemma4", "gemma4.embedding_length_per_layer_input": [0]},
    ],
)
def test_metadata_of_the_wrong_kind_is_shown_all_the_same(
    metadata: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(write_gguf(metadata))
    for options in ([], ["--template"], ["--json", "--template"]):
        assert shown(capsys, str(path), *options)
