"""What is typed at a prompt: read with line editing where the system has readline, and remembered from one chat to the
next.

Several lines that are pasted are one entry. Terminals mark where a paste begins and ends, and GNU readline puts all of
it into the line being edited, to be sent with Enter. Where it cannot, the lines that already wait in the terminal when
the first one is read belong to it.
"""

import os
import re
import select
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PAUSE = 0.03  # seconds within which the next line of a paste arrives
LONGEST = 1000  # entries in the history file
_BREAK = "\x1f"  # a line break within an entry, in the history file
_LIBEDIT = b"_HiStOrY_V2_\n"  # how a history file written by libedit begins


def history_file() -> Path | None:
    """The history file, in the XDG state folder; None without a home folder."""
    chosen = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(chosen) if Path(chosen).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "wgemma" / "history"


class Lines:
    """Reads entries and remembers them in the file at `path`, one per line. An unusable file is ignored."""

    def __init__(self, path: Path | None) -> None:
        try:
            import readline
        except ImportError:
            self._readline: Any = None
        else:
            self._readline = readline
        self._path = path
        self._entries: list[str] = []
        self._enabled = True
        self._marked = self._mark_pastes()

    def _mark_pastes(self) -> bool:
        """Asks the terminal to mark pastes; returns whether it can."""
        if self._readline is None or "libedit" in (self._readline.__doc__ or "") or os.environ.get("TERM") == "dumb":
            return False
        self._readline.parse_and_bind("set enable-bracketed-paste on")
        return True

    def read(self, prompt: str) -> str:
        """The next entry: a line, or all lines of a paste."""
        lines = [_line(prompt)]
        with suppress(EOFError):
            while not self._marked and _waiting():
                lines.append(_line())
        return "\n".join(lines)

    def unfinished(self) -> str:
        """What was typed at the prompt when Ctrl-C came."""
        return str(self._readline.get_line_buffer()) if self._readline is not None else ""

    # -- history

    def open(self, *, enabled: bool) -> None:
        if self._readline is None:
            return
        self._readline.set_auto_history(False)  # it would take each line of an entry for one
        self._enabled = True
        for entry in _saved(self._path):
            self.remember(entry)
        self._enabled = enabled

    def enable(self, enabled: bool) -> None:
        self._enabled = enabled

    def remember(self, entry: str) -> None:
        """Adds an entry to the history, unless it repeats the last one."""
        if self._enabled and self._readline is not None and entry.strip() and self._entries[-1:] != [entry]:
            self._readline.add_history(entry)
            self._entries.append(entry)

    def save(self) -> None:
        if self._path is None or not self._entries:
            return
        text = "".join(entry.replace("\n", _BREAK) + "\n" for entry in self._entries[-LONGEST:])
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.touch(mode=0o600)
            self._path.write_bytes(text.encode(errors="surrogateescape"))


def _saved(path: Path | None) -> list[str]:
    """The entries in a history file, which may be readline's own or libedit's."""
    data = b""
    with suppress(OSError):
        data = b"" if path is None else path.read_bytes()
    if data.startswith(_LIBEDIT):
        data = re.sub(rb"\\([0-3][0-7]{2})", lambda code: bytes([int(code[1], 8)]), data.removeprefix(_LIBEDIT))
    lines = data.replace(b"\0", b"").decode(errors="surrogateescape").split("\n")
    return [line.replace(_BREAK, "\n") for line in lines if line]


def _line(prompt: str = "") -> str:
    try:
        return input(prompt)
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # how `input` takes a second Ctrl-C right after the first
            raise KeyboardInterrupt from None
        raise


def _waiting() -> bool:
    """Whether another line can be read without anyone typing it."""
    try:
        return bool(select.select([sys.stdin], [], [], PAUSE)[0])
    except (OSError, ValueError):  # a terminal that cannot be asked, such as Windows'
        return False
