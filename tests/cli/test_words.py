"""Which word of a command line is the model."""

import json
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from wgemma.cli import main, parser
from wgemma.cli.words import model_and_words
from wgemma.embedded import NAME
from wgemma.errors import Error


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    monkeypatch.chdir(tmp_path)
    return data / "ollama-store"


def split(*words: str) -> tuple[str, list[str]]:
    options = parser().parse_args(["run", *words])
    assert isinstance(options, Namespace)
    return model_and_words(options)


@pytest.mark.parametrize(
    "prompt",
    ["Hello!", "Hello", "Why?", "2+2", "-5", "Is it 3:4?", "What is in model.png?", "cat.png", "…", "a\0b", "x" * 9999],
    ids=lambda prompt: ascii(prompt)[:20],
)
def test_a_one_word_prompt_is_no_model(prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert split(prompt) == (NAME, [prompt])
    assert split(prompt, "and", "more") == (NAME, [prompt, "and", "more"])
    assert f"Using {NAME}, the tiny demonstration model" in capsys.readouterr().err


def test_json_says_nothing_of_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert split("Hello", "--json") == (NAME, ["Hello"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "model", [NAME, "gemma4", "gemma4:tiny", "someone/mygemma:v1", "llama-mini", "http://127.0.0.1/a.gguf", "my blob"]
)
def test_a_first_word_that_names_a_model_is_the_model(model: str, store: Path, tmp_path: Path) -> None:
    blob = next(path for path in (store / "blobs").iterdir() if path.stat().st_size > 1 << 20)
    shutil.copy(blob, tmp_path / "my blob")
    assert split(model) == (model, [])
    assert split(model, "Why?") == (model, ["Why?"])


def test_what_follows_two_dashes_is_the_prompt() -> None:
    assert split("--", "--think") == (NAME, ["--think"])
    assert split("-m", "gemma4:tiny", "Say", "--json", "--", "--verbose", "-x") == (
        "gemma4:tiny",
        ["Say", "--verbose", "-x"],
    )
    assert not parser().parse_args(["run", "--", "--verbose"]).verbose


def test_with_m_every_word_is_the_prompt() -> None:
    assert split("-m", "gemma4:tiny", "gemma4", "Why?") == ("gemma4:tiny", ["gemma4", "Why?"])
    assert split("gemma4", "--model", "gemma4:tiny") == ("gemma4:tiny", ["gemma4"])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("gemma4:tinny", "gemma4:tinny is not on this computer. Did you mean gemma4:tiny"),
        ("gema4", "gema4:latest is not on this computer. Did you mean gemma4:latest"),
        ("some/model", "some/model:latest is not on this computer."),
        ("10:30", "10:30 is not on this computer."),
        ("nowhere.gguf", "nowhere.gguf: no such file."),
        ("./nowhere", "'./nowhere' is not a model name."),
        (".", ". is a folder; name the .gguf file in it."),
    ],
)
def test_a_word_that_could_be_either_says_how_to_write_it(word: str, told: str) -> None:
    with pytest.raises(Error) as caught:
        split(word, "Why?")
    assert str(caught.value).startswith(told)
    assert str(caught.value).endswith(f"name a model before it: `wgemma run -m {NAME} {word} …`.")
    assert split("-m", NAME, word, "Why?") == (NAME, [word, "Why?"])


def test_an_installed_model_that_is_broken_is_no_prompt() -> None:
    with pytest.raises(Error) as caught:
        split("gemma4:nomodel")
    assert "no model layer" in str(caught.value) and "-m" not in str(caught.value)


def test_a_store_that_cannot_be_read_hides_no_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "loop"))
    assert split("Hello") == (NAME, ["Hello"])


@pytest.mark.parametrize(
    "line",
    [
        ["gemma4:tiny", "--think", "Why?", "--seed", "1"],
        ["--think", "gemma4:tiny", "--seed", "1", "Why?"],
        ["--think=true", "--seed=1", "gemma4:tiny", "Why?"],
        ["--seed", "1", "--think", "true", "gemma4:tiny", "Why?"],
        ["gemma4:tiny", "--seed", "1", "--think", "--", "Why?"],
    ],
    ids=" ".join,
)
def test_options_may_stand_anywhere(line: list[str]) -> None:
    options = parser().parse_args(["run", *line])
    assert (options.words, options.seed, options.think) == (["gemma4:tiny", "Why?"], 1, "true")


def test_the_other_verbs_take_the_embedded_model_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == NAME
    assert main(["tokenize", "Hello", "world", "--json"]) == 0
    assert "".join(json.loads(capsys.readouterr().out)["tokens"]) == "Hello▁world"
    assert main(["tokenize", "gemma4:tiny", "Hello", "--json"]) == 0
    assert "".join(json.loads(capsys.readouterr().out)["tokens"]) == "Hello"
    assert parser().parse_args(["bench"]).model is None
