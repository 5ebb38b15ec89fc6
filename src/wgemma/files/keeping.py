"""Writes blobs into wgemma's own store. Whenever the process ends, the store is one that every reader accepts.

A blob gets its name once all of it is on the disk and hashes to that name. What is unfinished has a name no reader
looks at:

    blobs/sha256-HEX            a complete blob
    blobs/sha256-HEX.partial    what has arrived of it; the next pull goes on from there
    blobs/sha256-HEX.link       another store's blob, which is being hashed
    blobs/sha256-HEX.lock       the process that is fetching it
    store.lock                  the process that is changing manifests
    manifest.partial            a manifest on its way to its name
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Any

from wgemma.checks import human_bytes
from wgemma.errors import Error, StoreError
from wgemma.files.locks import locked
from wgemma.files.ollama import Store, sha256
from wgemma.files.paths import mode
from wgemma.files.stores import VARIABLE
from wgemma.files.writing import settle, settle_folder

PIECE = 1 << 20
PATIENCE = 60.0  # seconds to wait for another process to change its manifests
POLL = 0.05

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def checked_digest(digest: Any) -> str:
    """The digest, if it is one: `sha256:` and 64 lower-case hexadecimal digits."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise StoreError(f"{digest!r:.100} is not a digest; it must be sha256: and 64 hex digits.", "invalid_digest")
    return digest


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob_place(store: Store, digest: str) -> Path:
    """Where a blob of that digest is, or would be."""
    return store.root / "blobs" / checked_digest(digest).replace(":", "-")


def partial_place(store: Store, digest: str) -> Path:
    return _beside(blob_place(store, digest), ".partial")


def link_place(store: Store, digest: str) -> Path:
    return _beside(blob_place(store, digest), ".link")


def lock_place(store: Store, digest: str) -> Path:
    return _beside(blob_place(store, digest), ".lock")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def has_blob(store: Store, digest: str, size: int | None = None) -> bool:
    """Whether the store has that blob, of that size if it is known."""
    found = size_of(blob_place(store, digest))
    return found is not None and size in (None, found)


def touch_blob(store: Store, digest: str) -> None:
    """Lets a blob that will be needed soon count as new (`FORGOTTEN`)."""
    place = blob_place(store, digest)
    with suppress(OSError):
        status = place.stat()
        if status.st_nlink == 1:
            os.utime(place)
        else:  # Ollama's store has it, too, where its times stay; st_ctime becomes now
            os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def existing(store: Store, digest: str) -> Path:
    """Where a blob is that must be there."""
    if not has_blob(store, digest):
        raise StoreError(f"the blob {digest} is not in the store. Send it first.", "missing_blob")
    return blob_place(store, digest)


def size_of(path: Path) -> int | None:
    """The size of a regular file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turns what goes wrong with the disk into a sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        told = f"{what} cannot be written: {reason}{f' ({error.filename})' if error.filename else ''}."
        if error.errno in _NOT_OURS:
            raise StoreError(f"{told} Set {VARIABLE} to a folder that you may write to.", "not_written") from None
        hint = " Nothing is lost; free some space and try again." if error.errno in _FULL else ""
        raise StoreError(told + hint, "not_written") from None


@contextmanager
def waiting_for(lock: Path, give_up: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds a lock, waiting for whoever has it; `give_up` gets the owner before each wait, and may raise. By default it
    does after a minute."""
    give_up = give_up or _patience(lock)
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            holding = locked(lock, _Busy)
            holding.__enter__()
            break
        except _Busy as busy:
            give_up(str(busy))
            time.sleep(POLL)
    try:
        yield
    finally:
        holding.__exit__(None, None, None)


def _patience(lock: Path) -> Callable[[str], None]:
    since = time.monotonic()

    def give_up(owner: str) -> None:
        if time.monotonic() - since > PATIENCE:
            raise StoreError(f"{owner} holds {lock}. Try again when it is done.", "busy")

    return give_up


class _Busy(Error):
    """Somebody else holds the lock."""


@contextmanager
def changing(store: Store) -> Iterator[None]:
    """Only one process at a time changes manifests, and what they need."""
    check_folders(store)
    with writing(str(store.root)), waiting_for(store.root / "store.lock"):
        yield


def check_folders(store: Store) -> None:
    """Raises `StoreError` if a folder of the store is none, or a link to elsewhere, which no reader follows."""
    try:
        store.check_folders()
    except StoreError as error:
        raise StoreError(str(error), "not_written") from None
    for folder in store.folders:
        if not folder.resolve().is_relative_to(store.root.resolve()):
            raise StoreError(
                f"{folder} leads out of the store, so wgemma does not follow it. To keep models on another disk, set "
                f"{store.variable} to a folder there.",
                "not_written",
            )


# -- blobs


def put_blob(store: Store, digest: str, pieces: Iterable[bytes], give_up: Callable[[str], None] | None = None) -> None:
    """Keeps a blob that must hash to `digest`; `give_up` as in `waiting_for`."""
    with writing(f"a blob in {store.root}"), holding(store, digest, give_up):
        _fill(store, digest, pieces)


def _fill(store: Store, digest: str, pieces: Iterable[bytes]) -> None:
    draft = partial_place(store, digest)
    try:
        with fresh_file(draft) as file:
            found = f"sha256:{_poured(pieces, file)}"
            if found != digest:
                raise StoreError(f"the blob {digest} is damaged: its bytes hash to {found}.", "bad_digest")
            settle(file)
        name_blob(draft, blob_place(store, digest))
    finally:
        draft.unlink(missing_ok=True)


def fresh_file(draft: Path) -> IO[bytes]:
    """A file of our own, whatever was there: a link might lead out of the store, and a pipe would block."""
    draft.unlink(missing_ok=True)
    return draft.open("xb")


@contextmanager
def holding(store: Store, digest: str, give_up: Callable[[str], None] | None = None) -> Iterator[None]:
    """Holds a blob that is being written; `give_up` as in `waiting_for`."""
    check_folders(store)
    with waiting_for(lock_place(store, digest), give_up):
        yield


def name_blob(draft: Path, place: Path) -> None:
    """Gives a complete blob its name, for good."""
    draft.replace(place)
    settle_folder(place.parent)


def _poured(pieces: Iterable[bytes], file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        file.write(piece)
        digest.update(piece)
    return digest.hexdigest()


def keep_bytes(store: Store, data: bytes) -> str:
    """Keeps a small blob, and returns its digest."""
    digest = digest_of(data)
    if not has_blob(store, digest, len(data)):
        put_blob(store, digest, [data])
    return digest


def keep_file(store: Store, path: Path, added: set[str], progress: Callable[[int], None] = lambda nbytes: None) -> str:
    """Keeps a copy of a file, and returns its digest, which is read first: it says whether a copy is needed. If so, it
    joins `added`. `progress` is called with the size of every piece, in all twice the file's."""
    digest = f"sha256:{sha256(path, progress)}"
    size = path.stat().st_size
    if has_blob(store, digest, size):
        touch_blob(store, digest)
        progress(size)
        return digest
    check_space(store, size, path.name)
    with path.open("rb") as file, writing(f"a blob in {store.root}"), holding(store, digest):
        if not has_blob(store, digest, size):  # another process may have brought it
            _fill(store, digest, _pieces(file, progress))
            added.add(digest)
    return digest


def _pieces(file: IO[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    while piece := file.read(PIECE):
        yield piece
        progress(len(piece))


def adopt(
    store: Store, other: Store, digest: str, size: int, progress: Callable[[int], None] = lambda nbytes: None
) -> bool:
    """Takes a blob, which the caller holds, over from another store, by a hard link if possible; False if it is not
    there intact. `progress` hears how many bytes have been looked at, and may raise to stop it."""
    seen = 0

    def hear(nbytes: int) -> None:
        nonlocal seen
        seen += nbytes
        progress(min(seen, size))

    try:
        path = other.blob(digest)
        with path.open("rb") as file, writing(f"a blob in {store.root}"):
            if os.fstat(file.fileno()).st_size != size:
                return False
            if not _adopt_link(store, digest, path, hear):
                check_space(store, size, path.name)
                _fill(store, digest, _pieces(file, hear))
    except StoreError as error:
        if error.reason not in ("missing_blob", "bad_blob", "bad_digest"):
            raise
        return False
    except OSError:
        return False
    return True


def _adopt_link(store: Store, digest: str, path: Path, progress: Callable[[int], None]) -> bool:
    """Adopts a file by a hard link; False if there can be none, as on another disk."""
    link = link_place(store, digest)
    link.unlink(missing_ok=True)
    try:
        os.link(path.resolve(), link)
    except OSError:
        return False
    try:
        if f"sha256:{sha256(link, progress)}" != digest:
            raise StoreError(f"the blob {digest} is damaged.", "bad_digest")
        name_blob(link, blob_place(store, digest))
    finally:
        link.unlink(missing_ok=True)
    return True


def check_space(store: Store, needed: int, what: str) -> None:
    """Raises `StoreError` if the disk has no room for `needed` more bytes."""
    folder = next(folder for folder in (store.root, *store.root.absolute().parents) if S_ISDIR(mode(folder)))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StoreError(
            f"{what} needs {human_bytes(needed)} more, but only {human_bytes(free)} are free in {store.root}. "
            f"Free some space, or set {store.variable} to a folder on another disk.",
            "no_space",
        )
