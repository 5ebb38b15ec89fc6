"""The processes that a process has started, on Linux."""

from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(process, command line) of everything that `pid` has started, and that these have."""
    try:
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in _words(task / "children")]
    except OSError:
        return
    for child in children:
        try:
            yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        yield from descendants(child)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
