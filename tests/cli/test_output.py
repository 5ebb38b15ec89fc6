"""Output is aligned, readable, safe for a terminal, and JSON where promised."""

import ast
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wgemma
from wgemma.checks import human_bytes
from wgemma.cli.output import ORDINARY, as_json, clean, human_count, progress, sentence, table


@given(st.text())
def test_cleaned_text_holds_nothing_a_terminal_obeys(text: str) -> None:
    assert all(character.isprintable() or character in "\n\t" for character in clean(text))


def test_cleaning_leaves_ordinary_text_alone_and_shows_the_rest() -> None:
    assert clean("Grüße, 世界 🦙\n\tok") == "Grüße, 世界 🦙\n\tok"
    assert clean("\x1b[2J\x9b\u202e\r") == "\\x1b[2J\\x9b\\x202e\\x0d"


def test_columns_are_aligned_and_a_cell_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    table(["A", "LONGER"], [["wide cell", "x"], ["two\nlines", "\x1b[1m"]])
    assert capsys.readouterr().out == "A          LONGER\nwide cell  x\ntwo⏎lines  \\x1b[1m\n"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_336_386, "1.3 MB"), (123_457_020, "123 MB"),
     (7_200_000_000, "7.2 GB"), (5 * 10**12, "5.0 TB"), ((1 << 63) - 1, "9223372.0 TB")],
)  # fmt: skip
def test_bytes_for_people(count: int, words: str) -> None:
    assert human_bytes(count) == words


@pytest.mark.parametrize(("count", "words"), [(7, "7"), (689_000, "689K"), (5_123_178_051, "5.1B"), (31e9, "31.0B")])
def test_counts_for_people(count: int, words: str) -> None:
    assert human_count(count) == words


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_json_is_ascii_and_parses_strictly(value: object) -> None:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        as_json({"value": value, "path": Path("x"), "pair": (1, 2)})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert printed.getvalue().isascii()
    parsed = json.loads(printed.getvalue(), parse_constant=refuse)
    assert (parsed["path"], parsed["pair"]) == ("x", [1, 2])
    if isinstance(value, float):
        assert parsed["value"] == (value if math.isfinite(value) else None)


def test_progress_where_nobody_watches_is_a_line_per_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("hashing", 1000) as bar:
        for _ in range(100):
            bar(10)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"hashing: {percent} %" for percent in range(10, 101, 10)]


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress("hashing", 1000) as bar:
        bar(500)
    assert "hashing" in terminal.getvalue()


def test_progress_of_nothing_does_not_divide_by_it() -> None:
    with progress("hashing", 0) as bar:
        bar(0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the prompt is empty.", "The prompt is empty."),
        ("there is no setting 'x'.", "There is no setting 'x'."),
        ("gemma4:e2c is not in the store.", "gemma4:e2c is not in the store."),
        ("cat.png: no such file.", "cat.png: no such file."),
        ("top_k is 'many'.", "top_k is 'many'."),
        ("context is 0.", "context is 0."),
        ("'much' is not a scale.", "'much' is not a scale."),
        ("There is no command /x.", "There is no command /x."),
        ("", ""),
    ],
)
def test_an_error_is_in_sentence_case_unless_it_begins_with_a_name(text: str, shown: str) -> None:
    assert sentence(text) == shown


# Words that begin an error and are names: of settings, fields and files.
NAMES = {
    "adapter", "adapter.type", "arena", "betas", "cancel", "chats", "chunks", "context", "device", "format",
    "general.type", "instruction,", "kernels/", "license", "logit_bias", "messages", "messages[", "module", "out",
    "parameters", "peft_type", "per_layer_token_embd.weight",
    "rank_pattern", "rope_freqs.weight", "schedule", "seq", "target_parameters", "targets", "texts", "texts[", "think",
    "tokenizer.ggml.tokens", "tool_choice", "tools", "verify",
    "warmup", "web/", "web/sw.js", "wgemma", "wgemma's", "wgpu",
}  # fmt: skip
# What follows a place, as in "line 3: contains an image".
CLAUSES = {"contains", "nested", "not"}


def first_words() -> set[str]:
    """The first word of every error that the package raises, where it is written out and in lower case."""
    found = set()
    for path in Path(wgemma.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            text: ast.AST = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if name.endswith(("Error", "Lost", "OutOfMemory", "Overflow")) and isinstance(text, ast.Constant):
                found.add(str(text.value).partition(" ")[0])
    return {word for word in found if word[:1].islower()}


def test_every_error_begins_with_a_capital_letter_or_a_name() -> None:
    assert len(first_words() & ORDINARY) > 10
    assert first_words() - ORDINARY - CLAUSES <= NAMES
