"""Lock files: one process at a time downloads a file or trains into a folder.

The lock is the operating system's, on the open file, so it ends with the process, however that ends and in whatever
container it ran. What the file says is for error messages: the process and host that hold it.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from stat import S_ISREG

from wgemma.errors import Error, SourceError
from wgemma.files.paths import mode
from wgemma.files.reading import regular_file

_LONGEST_OWNER = 300  # bytes
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe would block
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_FAR = 1 << 30  # the byte that is locked on Windows, where nobody could read it


@contextmanager
def locked(lock: Path, refusal: Callable[[str], Error]) -> Iterator[None]:
    """Holds the lock file; raises `refusal` of the owner (such as "process 12 on host") if someone else does."""
    handle = _take(lock)
    if handle is None:
        raise refusal(owner(lock))
    try:
        yield
    finally:
        _release(lock, handle)


def is_held(lock: Path) -> bool:
    """Whether a process holds the lock file. One that a killed process left is removed."""
    if not mode(lock):
        return False
    with suppress(OSError):
        handle = _take(lock)
        if handle is None:
            return True
        _release(lock, handle)
    return False


def owner(lock: Path) -> str:
    """The process that holds a lock, for an error message."""
    try:
        with regular_file(lock, _LONGEST_OWNER) as file:
            signature = file.read(_LONGEST_OWNER).decode(errors="replace")
    except SourceError:
        signature = ""
    return f"process {signature.replace(' ', ' on ', 1) or '?'}"


def _take(lock: Path) -> int | None:
    """The open file, locked and signed; None if somebody else holds it, or if it is a pipe or the like."""
    while True:
        if lock.is_symlink():  # what it leads to is somebody else's
            lock.unlink(missing_ok=True)
        handle = os.open(lock, _FLAGS, 0o644)
        try:
            if not S_ISREG(os.fstat(handle).st_mode) or not _lock(handle):
                os.close(handle)
                return None
            if _is_named(lock, handle):
                _sign(handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its owner has removed it meanwhile


def _sign(handle: int) -> None:
    os.ftruncate(handle, 0)
    with suppress(OSError):  # a full disk: the lock holds without a signature, and deleting a model needs it
        os.write(handle, f"{os.getpid()} {node()}".encode())


def _is_named(lock: Path, handle: int) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.lstat(lock), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> bool:
    """Locks an open file; False if somebody else has."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _FAR, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _release(lock: Path, handle: int) -> None:
    """Removes the file while it is still locked, so that nobody takes one without a name; Windows wants it closed."""
    if sys.platform != "win32":
        lock.unlink(missing_ok=True)
    os.close(handle)
    if sys.platform == "win32":
        with suppress(OSError):  # somebody else has it open
            lock.unlink()
