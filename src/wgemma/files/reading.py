"""Reads files that a user named.

A pipe blocks, a device never ends, and a file may be larger than memory: `regular_file` refuses all three before a byte
is read.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from wgemma.errors import Error, SourceError
from wgemma.files.paths import user_path


@contextmanager
def regular_file(
    path: str | os.PathLike[str], most: int, error: Callable[[str], Error] = SourceError
) -> Iterator[BinaryIO]:
    """Opens a regular file of at most `most` bytes; raises `error` for any other, and if reading it fails."""
    # Without O_NONBLOCK, opening a pipe that nobody writes to would block forever.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(user_path(path, error), flags)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or a pipe"
                raise error(f"{path} is {kind}, not a file.")
            if status.st_size > most:
                raise error(f"{path} has {status.st_size:,} bytes; the limit is {most:,}.")
            with os.fdopen(handle, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(handle)
    except OSError as trouble:
        raise error(f"{path} cannot be read: {trouble.strerror or trouble}.") from None


class ViewFile:
    """A file to read over bytes that are in memory already, without a copy."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        piece = bytes(self._data[self._at : end])
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at
