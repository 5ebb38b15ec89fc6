"""Lock files: one process at a time downloads a file or trains into a folder.

A lock file holds the process and host that made it. It is stale once that process is gone, and then anyone may take it.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from threading import Lock

from wgemma.errors import Error, SourceError
from wgemma.files.paths import mode
from wgemma.files.reading import regular_file

UNSIGNED_SECONDS = 10  # after which a lock without an owner is stale

_OWNER = re.compile(r"([1-9][0-9]{0,8}) (.*)")
_LONGEST_OWNER = 300  # bytes
_held: set[Path] = set()  # the locks of this process
_taking = Lock()


@contextmanager
def locked(lock: Path, refusal: Callable[[str], Error]) -> Iterator[None]:
    """Holds the lock file; raises `refusal` of the owner (such as "process 12 on host") if someone else does."""
    lock = _place(lock)
    with _taking:
        if not _take(lock):
            _break_if_stale(lock)
            if not _take(lock):
                raise refusal(owner(lock))
        _held.add(lock)
    try:
        yield
    finally:
        with _taking:
            _held.discard(lock)
            lock.unlink(missing_ok=True)


def _place(lock: Path) -> Path:
    """Two names of one folder are one lock. A lock that is a link is not followed: its target is somebody else's."""
    return lock.parent.resolve() / lock.name


def is_held(lock: Path) -> bool:
    """Whether a running process holds the lock file."""
    lock = _place(lock)
    return bool(mode(lock)) and not _is_stale(lock)


def owner(lock: Path) -> str:
    """The process that holds a lock, for an error message."""
    return f"process {_signature(lock).replace(' ', ' on ', 1) or '?'}"


def _take(lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(handle, f"{os.getpid()} {node()}".encode())
    except OSError:  # a full disk; nobody should wait for a lock without an owner
        lock.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    return True


def break_if_stale(lock: Path) -> None:
    """Removes a lock whose owner was killed."""
    if mode(lock):
        with _taking:
            _break_if_stale(_place(lock))


def _break_if_stale(lock: Path) -> None:
    """Removes a lock whose owner is gone. A guard file makes sure that only one process does, so a second one cannot
    remove the lock the first has just taken."""
    guard = lock.with_name(lock.name + ".guard")
    if mode(guard) and _is_stale(guard):
        guard.unlink(missing_ok=True)  # its owner was killed at this very place
    if _take(guard):
        try:
            if _is_stale(lock):
                lock.unlink(missing_ok=True)
        finally:
            guard.unlink(missing_ok=True)


def _is_stale(lock: Path) -> bool:
    """Whether the owner is gone. An owner on another host (or container) cannot be checked and counts as running."""
    signed = _OWNER.fullmatch(_signature(lock))
    if signed is None:  # not written yet, or the owner died before writing it
        with suppress(FileNotFoundError):
            return time.time() - lock.stat().st_mtime > UNSIGNED_SECONDS
        return False
    pid, host = int(signed[1]), signed[2]
    if host != node():
        return False
    return lock not in _held if pid == os.getpid() else not _runs(pid)


def _signature(lock: Path) -> str:
    """What the owner wrote; empty if there is no owner yet."""
    try:
        with regular_file(lock, _LONGEST_OWNER) as file:
            return file.read(_LONGEST_OWNER).decode(errors="replace")
    except SourceError:
        return ""


def _runs(pid: int) -> bool:
    if sys.platform == "win32":
        import ctypes

        kernel = ctypes.windll.kernel32
        handle = kernel.OpenProcess(0x100000, False, pid)  # SYNCHRONIZE
        if not handle:
            return bool(kernel.GetLastError() == 5)  # exists, but access is denied
        timed_out = kernel.WaitForSingleObject(handle, 0) == 0x102
        kernel.CloseHandle(handle)
        return bool(timed_out)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # exists, but belongs to someone else
    return True
