"""A path as a user wrote it, checked before it reaches the file system.

Python raises `ValueError` or `UnicodeError`, not `OSError`, for a path that no file can have. `user_path` refuses such
a path with a sentence, so its callers need to handle `OSError` only.
"""

import os
from collections.abc import Callable
from pathlib import Path

from wgemma.checks import shown
from wgemma.errors import Error, SourceError


def user_path(path: str | os.PathLike[str], error: Callable[[str], Error] = SourceError) -> Path:
    """`path` as a `Path`, with a leading `~` expanded; raises `error` if no file can have it as its name."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise error(f"{shown(path)} is not a path; pass a string or a pathlib.Path.")
    if "\0" in text:
        raise error(f"{text!r:.80} is not a path: it contains a zero byte.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise error(f"{text!r:.80} is not a path: it contains half a surrogate pair.") from None
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        return Path(text)


def mode(path: Path) -> int:
    """The `st_mode` of a file or folder; 0 if it does not exist or is not accessible."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0
