"""Downloads blobs into wgemma's store: several at once, hashed on the way, each from where the last try stopped.

A blob is a URL, and the digest and size that were announced for it. Servers may be slow, cut the connection, ignore
ranges or lie; what arrives is only ever kept under its name if it hashes to its digest.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import IO, Any
from urllib.parse import urlsplit

from wgemma.errors import Error, SourceError, StoreError
from wgemma.files.keeping import (
    adopt,
    blob_place,
    check_folders,
    check_space,
    has_blob,
    holding,
    lock_place,
    name_blob,
    partial_place,
    size_of,
    touch_blob,
    writing,
)
from wgemma.files.locks import is_held
from wgemma.files.ollama import Store
from wgemma.files.sources import content_length
from wgemma.files.waiting import PATIENCE
from wgemma.files.web import Manners, Pace, request_span, without_password
from wgemma.files.writing import settle

AT_ONCE = 4  # blobs
ATTEMPTS = 6  # in a row without a byte, before giving up
TIMEOUT = 30.0
PAUSE = 0.1  # seconds before the second attempt; it doubles from then on
PIECE = 1 << 20
EVERY = 0.1  # seconds between two reports of one blob
QUIET = 1.0  # seconds without a report, after which the last comes again: who listens may want to stop


@dataclass(frozen=True, slots=True)
class Blob:
    """What to get, and from where; without a URL, only another store has it."""

    url: str | None
    digest: str
    size: int
    manners: Manners = field(default_factory=lambda: Manners(strict=True))

    @property
    def short(self) -> str:
        return self.digest.removeprefix("sha256:")[:12]

    def report(self, completed: int) -> dict[str, Any]:
        """Progress in Ollama's words."""
        verb = "pulling" if self.url else "copying"
        return {"status": f"{verb} {self.short}", "digest": self.digest, "total": self.size, "completed": completed}


def fetch(
    store: Store, blobs: Sequence[Blob], what: str, others: Sequence[Store] = (), added: set[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Gets all blobs, from `others` if they have them; yields reports. Those that were not here join `added`. Closing
    the iterator stops the downloads, and the next call goes on from there."""
    check_folders(store)
    missing = [blob for blob in blobs if not has_blob(store, blob.digest, blob.size)]
    begun = {blob.digest: size_of(partial_place(store, blob.digest)) or 0 for blob in missing}
    new = [blob for blob in missing if not any(has_blob(other, blob.digest, blob.size) for other in others)]
    check_space(store, sum(max(blob.size - begun[blob.digest], 0) for blob in new), what)
    report: dict[str, Any] = {}
    for blob in blobs:
        if blob.digest not in begun:
            touch_blob(store, blob.digest)
            is_held(lock_place(store, blob.digest))  # removes what a killed pull left
        report = blob.report(min(begun.get(blob.digest, blob.size), blob.size))
        yield report
    crew = _Crew(store, missing, others, set() if added is None else added)
    try:
        yield from crew.reports(report)
    finally:
        crew.stop()


class _Stopped(Exception):
    """The downloads were stopped from outside."""


class _Crew:
    """Threads that share a list of blobs. They are daemons: the program may end while one waits for a server."""

    def __init__(self, store: Store, blobs: Sequence[Blob], others: Sequence[Store], added: set[str]) -> None:
        self._store = store
        self._others = others
        self._added = added
        self._left = len(blobs)
        self._host = next((urlsplit(blob.url).netloc for blob in blobs if blob.url), None)
        self._jobs: SimpleQueue[Blob] = SimpleQueue()
        for blob in blobs:
            self._jobs.put(blob)
        self._told: SimpleQueue[dict[str, Any] | BaseException | None] = SimpleQueue()
        self._stop = Event()
        self._threads = [Thread(target=self._work, daemon=True) for _ in range(min(AT_ONCE, len(blobs)))]
        for thread in self._threads:
            thread.start()

    def reports(self, last: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """`last` is the report before these."""
        since = monotonic()
        while self._left:
            try:
                told = self._told.get(timeout=QUIET)
                since = monotonic()
            except Empty:
                told = last
                if self._host and "digest" in last and monotonic() - since > PATIENCE:
                    told = {"status": f"waiting for {self._host}"}
            if told is None:
                self._left -= 1
            elif isinstance(told, BaseException):
                raise told
            else:
                last = told
                yield told

    def stop(self) -> None:
        """Ends the downloads. A thread that waits for a server's answer ends when that comes."""
        self._stop.set()
        until = monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(until - monotonic(), 0.0))

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._get(self._jobs.get_nowait())
                self._told.put(None)
        except (Empty, _Stopped):
            pass
        except BaseException as error:
            self._told.put(error)

    def _get(self, blob: Blob) -> None:
        with writing(f"a blob in {self._store.root}"), holding(self._store, blob.digest, self._waiter(blob)):
            if not has_blob(self._store, blob.digest, blob.size):
                self._bring(blob)
                self._added.add(blob.digest)
        self._told.put(blob.report(blob.size))

    def _bring(self, blob: Blob) -> None:
        for other in self._others:
            if adopt(self._store, other, blob.digest, blob.size, self._reporter(blob)):
                return
        if blob.url is None:
            raise StoreError(f"the blob {blob.digest} is missing or damaged.", "missing_blob")
        _Download(self._store, blob, blob.url, self._reporter(blob)).run()

    def _reporter(self, blob: Blob) -> "_Reporter":
        return _Reporter(blob, self._told, self._stop)

    def _waiter(self, blob: Blob) -> Callable[[str], None]:
        """What to do while somebody else is getting the blob."""
        told: set[str] = set()

        def wait(owner: str) -> None:
            if self._stop.is_set():
                raise _Stopped
            if owner not in told:
                told.add(owner)
                self._told.put({"status": f"waiting for {owner}, which is pulling {blob.short}"})

        return wait


class _Reporter:
    """Says how far a blob is, and raises `_Stopped` when nobody wants it any more."""

    def __init__(self, blob: Blob, told: "SimpleQueue[Any]", stop: Event) -> None:
        self._blob = blob
        self._told = told
        self._stop = stop
        self._reported = 0.0

    def __call__(self, completed: int) -> None:
        if self._stop.is_set():
            raise _Stopped
        if monotonic() - self._reported > EVERY:
            self._reported = monotonic()
            self._told.put(self._blob.report(completed))

    def wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped


class _Download:
    """One blob on its way."""

    def __init__(self, store: Store, blob: Blob, url: str, report: _Reporter) -> None:
        self._store = store
        self._blob = blob
        self._url = url
        self._report = report
        self._name = without_password(url)
        self._partial = partial_place(store, blob.digest)
        self._digest = hashlib.sha256()
        self._have = 0

    def run(self) -> None:
        resumed = bool(size_of(self._partial))
        if not self._complete():
            self._partial.unlink(missing_ok=True)
            # Bytes from an earlier run may be to blame: a disk that lost power, a file somebody touched.
            if not resumed or not self._complete():
                self._partial.unlink(missing_ok=True)
                raise StoreError(
                    f"{self._name}: the download is damaged or another file: its bytes hash to "
                    f"{self._digest.hexdigest()}, but {self._blob.digest} was announced. It was removed; try again.",
                    "bad_digest",
                )
        name_blob(self._partial, blob_place(self._store, self._blob.digest))

    def _complete(self) -> bool:
        """Fills the partial file; whether it is the announced one."""
        _refuse_links(self._partial)
        with self._partial.open("a+b", buffering=0) as file:
            self._hash_again(file)
            self._pace = Pace(self._name)
            failures = 0
            while self._have < self._blob.size:
                had = self._have
                trouble = self._try(file)
                failures = 0 if self._have > had else failures + 1
                if failures >= ATTEMPTS:
                    raise SourceError(
                        f"{self._name}: no data after {failures} tries ({trouble}). "
                        "Check the connection and try again; the download goes on where it stopped."
                    )
                if failures:
                    self._report.wait(PAUSE * 2**failures)
            settle(file)
        return f"sha256:{self._digest.hexdigest()}" == self._blob.digest

    def _hash_again(self, file: IO[bytes]) -> None:
        self._start_over()
        if file.seek(0, 2) > self._blob.size:
            file.truncate(0)
        file.seek(0)
        while piece := file.read(PIECE):
            self._count(piece)

    def _start_over(self) -> None:
        self._digest, self._have = hashlib.sha256(), 0

    def _try(self, file: IO[bytes]) -> str:
        """Appends what one request brings; says why it is not all."""
        from http.client import HTTPException

        left = self._blob.size - self._have
        try:
            answer = request_span(self._url, self._have, left, self._pace, TIMEOUT, self._blob.manners)
        except ConnectionError as error:
            return str(error)
        with closing(answer.response) as response:
            if response.status == 200 and self._have:  # a server without ranges sends all of it again
                self._start_over()
                file.truncate(0)
            self._check_size(response)
            while self._have < self._blob.size:
                try:
                    piece = response.read1(min(PIECE, self._blob.size - self._have))
                except (HTTPException, OSError, ValueError) as error:
                    return str(error) or type(error).__name__
                if not piece:
                    break
                _write(file, piece)
                self._count(piece)
                self._pace.count(len(piece))
        return "the connection dropped"

    def _check_size(self, response: Any) -> None:
        """Raises `SourceError` if the server's file is not as long as announced."""
        size, start = content_length(response), 0
        if response.status == 206:
            unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
            span, _, total = rest.partition("/")
            start = int(first) if unit == "bytes" and (first := span.partition("-")[0]).isdecimal() else -1
            size = int(total) if total.isdecimal() and len(total) < 19 else None
        if start != self._have or size not in (None, self._blob.size):
            raise SourceError(f"{self._name}: the server's file is not the announced one, or not the part asked for.")

    def _count(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._have += len(piece)
        self._report(self._have)


def _refuse_links(path: Path) -> None:
    """A pipe would block, and a link might lead out of the store."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Error(f"{path} is not a regular file. Delete it.")


def _write(file: IO[bytes], data: bytes) -> None:
    """Writes all of it; if the disk takes only some, that is still the file's beginning."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
