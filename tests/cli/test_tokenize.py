"""`wgemma tokenize` shows the tokens of a text."""

import io
import json
from pathlib import Path

import pytest

from wgemma import Tokenizer
from wgemma.cli import main
from wgemma.files.locate import locate


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, data: Path) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(data / "ollama-store"))
    return data / "ollama-store"


def test_every_token_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "gemma4:tiny", "Hello!\n <turn|>"]) == 0
    tokenizer = Tokenizer.from_gguf(locate("gemma4:tiny").model)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(line[0]) for line in lines] == tokenizer.encode("Hello!\n <turn|>")
    assert "⏎" in [line[1] for line in lines]


def test_special_tokens_are_recognised_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tokenize", "gemma4:tiny", "<turn|>", "--special"])
    assert capsys.readouterr().out == "16  <turn|>\n"
    main(["tokenize", "gemma4:tiny", "<turn|>", "--json"])
    assert 16 not in json.loads(capsys.readouterr().out)["ids"]


def test_json_gives_ids_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "gemma4:tiny", "a b", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["ids"]) == len(record["tokens"])
    assert "".join(record["tokens"]) == "a▁b"


@pytest.mark.parametrize("text", ["", "caf\udce9", "\x1b[2J"])
def test_any_text_can_be_given(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--json"]):
        assert main(["tokenize", "gemma4:tiny", text, *options]) == 0
        assert "\x1b" not in capsys.readouterr().out


def test_without_a_text_standard_input_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    assert main(["tokenize", "gemma4:tiny", "--json"]) == 0
    tokenizer = Tokenizer.from_gguf(locate("gemma4:tiny").model)
    assert tokenizer.decode(json.loads(capsys.readouterr().out)["ids"]) == "a\N{REPLACEMENT CHARACTER}"


def test_a_vocabulary_of_another_family_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "llama-mini", "x"]) == 1
    assert "wgemma supports only Gemma 4's" in capsys.readouterr().err
