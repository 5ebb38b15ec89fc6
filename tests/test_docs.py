"""The README's Python runs, and every command line in it parses."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import wgemma
from batch_files import records
from test_embedded import PIP
from wgemma.cli import main, parser
from wgemma.files.modelfile import parse_modelfile

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(kind: str, file: str = "README.md") -> list[str]:
    return [text for language, text in BLOCK.findall((ROOT / file).read_text("utf-8")) if language == kind]


def test_the_readmes_python_runs(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = json.loads((data / "ollama-store/EXPECTED.json").read_text())["models"]
    blob = data / "ollama-store" / store["gemma4:tiny"]["model"]
    asked = wgemma.load

    def load(name: str | None = None, **options: Any) -> wgemma.Model:
        return asked(blob, context=256) if name else asked(**options)

    monkeypatch.setattr(wgemma, "load", load)
    monkeypatch.chdir(ROOT)
    chat, media, parse, many = blocks("python")
    exec(compile(chat, "README.md", "exec"), {})
    assert "Usage(prompt=" in capsys.readouterr().out
    after: dict[str, Any] = {}
    exec(compile(media, "README.md", "exec"), after)
    assert after["rows"].shape == (64, 256)
    capsys.readouterr()
    exec(compile(parse, "README.md", "exec"), {})
    assert capsys.readouterr().out == "Person(name='Bob', age=12)\n3 + 4 = 7\n"
    exec(compile(many, "README.md", "exec"), {})
    told = capsys.readouterr().out.splitlines()
    assert {int(line.split()[0]) for line in told[:-3]} == set(range(40)) and len(eval(told[-3])) == 5


def test_the_readmes_modelfile_is_one() -> None:
    (text,) = blocks("Modelfile")
    said = parse_modelfile(text.encode())
    assert (said.bases, said.system) == ({"gemma4:e2b": 1}, "You are a pirate.")


def test_the_python_about_structured_answers_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = wgemma.load
    monkeypatch.setattr(wgemma, "load", lambda name: asked(context=512))
    names: dict[str, Any] = {}
    told = []
    for text in blocks("python", "docs/structured.md"):
        exec(compile(text, "docs/structured.md", "exec"), names)
        told.append(capsys.readouterr().out)
    review, formats, refused, calls, run, *_ = told
    text, parsed = review.splitlines()
    assert eval(parsed, names) == names["Review"](**json.loads(text))
    choice, score, verdict, points = map(eval, formats.splitlines())
    assert choice in ("positive", "negative") and re.fullmatch(r"(10|\d)/10", score)
    assert verdict in ("yes", "no, too cold", "no, too slow") and 0 <= points["score"] <= 10
    assert refused.startswith("#/unevaluatedItems cannot be enforced")
    assert all(call.startswith("weather {") for call in calls.splitlines())
    assert re.fullmatch(r"(stop|length|tool), \d calls", run.splitlines()[-1])


def test_the_readmes_examples_are_those_that_teach_the_tiny_model_a_fact() -> None:
    _, pip = blocks("json")
    assert [json.loads(line) for line in pip.splitlines()] == PIP


def test_every_command_of_the_readme_parses() -> None:
    lines = [line.partition("#")[0].rpartition("|")[2].strip() for text in blocks("") for line in text.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("wgemma ")]
    assert len(commands) >= 9
    for command in commands:
        assert parser().parse_args(command).verb


def test_every_command_about_structured_answers_parses() -> None:
    lines = [line.partition("|")[0] for text in blocks("", "docs/structured.md") for line in text.splitlines()]
    assert [parser().parse_args(shlex.split(line)[1:]).format for line in lines] == ["review.schema.json", "json"]


def test_the_batch_file_about_scaling_is_answered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (requests,) = blocks("json", "docs/scaling.md")
    Path("requests.jsonl").write_text(requests)
    command, again = (line.partition("#")[0] for line in blocks("sh", "docs/scaling.md")[0].splitlines()[:2])
    for line in (command, again):
        assert main(shlex.split(line)[1:]) == 0
    found = {one["custom_id"]: one["response"] for one in records(Path("results.jsonl"))}
    assert {name: one["status_code"] for name, one in found.items()} == {"a": 200, "b": 200}


def test_the_python_about_scaling_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = blocks("python", "docs/scaling.md")
    exec(compile(text, "docs/scaling.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_every_command_about_scaling_parses() -> None:
    lines = [line for text in blocks("sh", "docs/scaling.md") for line in text.splitlines()]
    lines += re.findall(r"entrypoint: (.*)", (ROOT / "docs/scaling.md").read_text("utf-8"))
    commands = [shlex.split(line.partition("#")[0])[1:] for line in lines if line.startswith("wgemma ")]
    assert len(commands) >= 8
    for command in commands:
        options = parser().parse_args(command)
        assert options.verb == command[0] and (options.ray is not None) == ("--ray" in command)


def test_the_manifest_about_scaling_is_yaml() -> None:
    yaml = pytest.importorskip("yaml")  # comes with Ray
    (text,) = blocks("yaml", "docs/scaling.md")
    cluster = yaml.safe_load(text)["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert len({group["template"]["spec"]["containers"][0]["image"] for group in groups}) == 1


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("")), re.MULTILINE)
    assert targets == ["chat", "app", "serve", "test"]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
