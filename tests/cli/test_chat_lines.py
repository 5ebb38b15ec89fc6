"""What is typed and pasted at a prompt, in real terminals with every kind of line editing."""

import ctypes.util
import readline
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pseudo_terminal import Terminal

# Reads entries, remembers them, and prints them as Python would; "bye" ends it.
READER = """
import sys
from pathlib import Path
if sys.argv[2] == "plain":
    sys.modules["readline"] = None
from wgemma.cli.chat_lines import Lines
lines = Lines(Path(sys.argv[1]))
lines.open(enabled=True)
entry = ""
while entry != "bye":
    entry = lines.read(">>> ")
    lines.remember(entry)
    print("entry", ascii(entry))
lines.save()
"""
TEXT = "one\n  two ü\n\nthree"
UP = "\x1b[A"
GNU = "libedit" not in (readline.__doc__ or "")


@contextmanager
def reader(history: Path, kind: str = "gnu") -> Iterator[Terminal]:
    """An open prompt; it must end by itself once "bye" is typed."""
    environment = {"TERM": "dumb" if kind == "dumb" else "xterm"}
    if kind == "libedit" and GNU:
        found = ctypes.util.find_library("edit")
        if found is None:
            pytest.skip("this machine has no libedit")
        environment["LD_PRELOAD"] = found  # it has readline's functions, and so comes before it
    if kind == "gnu" and not GNU:
        pytest.skip("this Python has no GNU readline")
    terminal = Terminal(str(history), kind, program=("-c", READER), **environment)
    try:
        terminal.until(">>> ")
        yield terminal
        terminal.type("bye\n")
        assert terminal.leave() == 0
    finally:
        terminal.close()


def said(terminal: Terminal) -> str:
    """The next entry."""
    terminal.until("entry ")
    entry = terminal.until("\n")
    terminal.until(">>> ")
    return str(eval(entry))


def test_a_paste_of_several_lines_can_be_edited_and_is_sent_with_enter(tmp_path: Path) -> None:
    with reader(tmp_path / "history") as terminal:
        terminal.paste(TEXT)
        terminal.type(" more\n")
        assert said(terminal) == f"{TEXT} more"
        terminal.type("before ")
        terminal.paste("a\r\nb\rc\n")  # terminals send carriage returns
        terminal.type("\n")
        assert said(terminal).split() == ["before", "a", "b", "c"]


@pytest.mark.parametrize("kind", ["plain", "dumb", "libedit"])
def test_lines_that_come_together_are_one_entry_where_pastes_are_not_marked(kind: str, tmp_path: Path) -> None:
    with reader(tmp_path / "history", kind) as terminal:
        terminal.type(f"{TEXT}\n")
        assert said(terminal) == TEXT
        terminal.type("by itself\n")
        assert said(terminal) == "by itself"


@pytest.mark.parametrize("kind", ["gnu", "libedit"])
def test_an_entry_of_several_lines_comes_back_whole_in_the_next_chat(kind: str, tmp_path: Path) -> None:
    history = tmp_path / "folder" / "history"
    with reader(history, kind) as terminal:
        (terminal.paste if kind == "gnu" else terminal.type)(TEXT)
        terminal.type("\n")
        said(terminal)
    with reader(history, kind) as terminal:
        terminal.type(f"{UP}{UP}")
        terminal.until("three")
        terminal.type("\n")
        assert said(terminal) == TEXT
    assert history.read_text().split("\n") == [TEXT.replace("\n", "\x1f"), "bye", TEXT.replace("\n", "\x1f"), "bye", ""]
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "old",
    [b"first\\040 one\nsay \\ h\xc3\xbc\n", b"_HiStOrY_V2_\nfirst\\134040\\040one\nsay\\040\\134\\040h\xc3\xbc\n"],
    ids=["readline", "libedit"],
)
def test_a_history_that_readline_or_libedit_wrote_is_read(old: bytes, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.write_bytes(old)
    with reader(history) as terminal:
        terminal.type(f"{UP}{UP}\n")
        assert said(terminal) == "first\\040 one"
    assert history.read_text() == "first\\040 one\nsay \\ hü\nfirst\\040 one\nbye\n"


def test_a_damaged_history_stops_nobody(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.write_bytes(b"a\0b\xff\n\n\x1f\n")
    with reader(history) as terminal:
        terminal.type("still here\n")
        assert said(terminal) == "still here"
    assert history.read_bytes() == b"ab\xff\nstill here\nbye\n"
