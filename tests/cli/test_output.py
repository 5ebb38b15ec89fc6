"""Output is aligned, readable, safe for a terminal, and JSON where promised."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgemma.cli.output import as_json, clean, human_bytes, human_count, progress, table


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
