"""Downloads models into the user's cache: in pieces, resumable, hashed.

The cache holds for each URL:

    NAME.gguf        the complete file; it gets this name only once every byte is there and the digest is right
    NAME.gguf.json   its size and SHA-256; with these, the file is used without asking the network
    NAME.gguf.part   what has arrived so far; NAME.gguf.part.json has the size and validator the server gave
    NAME.gguf.lock   the process and host downloading it
"""

import hashlib
import json
import os
import re
import shutil
import string
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import IO, Any
from urllib.parse import parse_qs, quote, urlsplit

from wgemma.errors import GgufError, SourceError
from wgemma.files.gguf import MAGIC
from wgemma.files.json_text import parse_json
from wgemma.files.locks import locked
from wgemma.files.sources import Buffer, HttpSource
from wgemma.files.web import Pace, request_span, without_password
from wgemma.sync import run

PIECE = 8 << 20
LONGEST_STEM = 100
TIMEOUT = 30.0

_SHA256 = re.compile("[0-9a-f]{64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def cache_folder() -> Path:
    """Where downloads go: `wgemma/models` in the system's cache folder."""
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            chosen = os.environ.get("XDG_CACHE_HOME", "")
            base = chosen if Path(chosen).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        raise SourceError("there is no home folder for downloads. Set XDG_CACHE_HOME to a folder.") from None
    return Path(base) / "wgemma" / "models"


def download(url: str, *, folder: Path | None = None, progress: Callable[[int], None] = lambda nbytes: None) -> Path:
    """The GGUF behind `url` as a file in the cache, downloaded if it is not there yet.

    `#sha256=HEX` at the end of the URL, or in its query, is the digest the file must have. `progress` is called with
    the size of every piece, including those of an earlier run: they add up to the file's size. A cache hit reports
    nothing.
    """
    address, wanted = _parse(url)
    entry = _Entry((folder or cache_folder()) / _file_name(address))
    if entry.is_whole(wanted):
        return entry.file
    try:
        entry.file.parent.mkdir(parents=True, exist_ok=True)
        with _locked(entry.beside(".lock"), without_password(address)):
            if not entry.is_whole(wanted):  # another process may have finished it a moment ago
                _fetch(address, wanted, entry, progress)
    except OSError as error:
        raise SourceError(f"{entry.file} cannot be written: {error.strerror or error}.") from None
    return entry.file


def _locked(lock: Path, address: str) -> AbstractContextManager[None]:
    return locked(
        lock,
        lambda owner: SourceError(
            f"{address} is already being downloaded by {owner}. "
            f"Wait until it is done; if there is no such process, delete {lock}."
        ),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file in the cache and its companions."""

    file: Path

    def beside(self, suffix: str) -> Path:
        return self.file.with_name(self.file.name + suffix)

    @property
    def record(self) -> Path:
        return self.beside(".json")

    @property
    def part(self) -> Path:
        return self.beside(".part")

    @property
    def part_record(self) -> Path:
        return self.beside(".part.json")

    def is_whole(self, wanted: set[str]) -> bool:
        """Whether the file matches its record and is the wanted one."""
        record = _read_json(self.record)
        size, digest = record.get("size"), record.get("sha256")
        return isinstance(size, int) and isinstance(digest, str) and size == _size(self.file) and wanted <= {digest}

    def drop_part(self) -> None:
        self.part.unlink(missing_ok=True)
        self.part_record.unlink(missing_ok=True)

    def finish(self, size: int, digest: str) -> None:
        """Gives the part its final name. A record must never sit next to a file it does not describe."""
        self.record.unlink(missing_ok=True)
        self.part.replace(self.file)
        _write_json(self.record, {"size": size, "sha256": digest})
        self.part_record.unlink(missing_ok=True)


def _parse(url: str) -> tuple[str, set[str]]:
    """The address to request, in ASCII and without fragment, and the digests the URL demands."""
    name = without_password(url)
    try:
        url.encode()  # half a surrogate pair is no text
        parts = urlsplit(url)
        path, query = (quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
        address = parts._replace(path=path, query=query, fragment="").geturl()
        urlsplit(without_password(address))  # which names the file
    except ValueError:
        raise SourceError(f"{name!r:.200} is not a valid URL.") from None
    demanded = [digest.lower() for digest in parse_qs(parts.fragment, keep_blank_values=True).get("sha256", [])]
    if not all(_SHA256.fullmatch(digest) for digest in demanded):
        raise SourceError(f"{name}: #sha256= must be followed by 64 hexadecimal digits.")
    hints = [digest.lower() for digest in parse_qs(parts.query).get("sha256", [])]
    return address, {*demanded, *(digest for digest in hints if _SHA256.fullmatch(digest))}


def _file_name(address: str) -> str:
    """A file name for the address: host and path make it readable, a hash makes it unique; never a path itself."""
    address = without_password(address)
    parts = urlsplit(address)
    stem = _UNSAFE.sub("-", f"{parts.hostname or ''}{parts.path}").removesuffix(".gguf")
    stem = re.sub(r"\.{2,}", ".", stem)[-LONGEST_STEM:].strip("-.")
    return f"{stem or 'model'}-{hashlib.sha256(address.encode()).hexdigest()[:16]}.gguf"


def _fetch(address: str, wanted: set[str], entry: _Entry, progress: Callable[[int], None]) -> None:
    """Downloads the file into the cache; an interrupted download stays as a part for the next run."""
    source = HttpSource(address, timeout=TIMEOUT)
    if bytes(run(source.read(0, min(len(MAGIC), source.size)))) != MAGIC:
        raise GgufError(f"{source.name}: at byte 0: this is not a GGUF file (it does not start with 'GGUF').")
    expected = wanted | _announced(address)
    if len(expected) > 1:
        raise SourceError(f"{source.name}: the URL's digest and the server's differ: {', '.join(sorted(expected))}.")

    origin = {"size": source.size, "validator": source.validator}
    have = _size(entry.part) or 0
    recognisable = source.validator is not None or expected
    if not (recognisable and have <= source.size and _read_json(entry.part_record) == origin):
        entry.drop_part()
        have = 0
    _check_space(source.name, entry.file.parent, source.size, have)
    _write_json(entry.part_record, origin)
    digest = _fill(source, entry.part, progress)
    if expected and digest not in expected:
        entry.drop_part()
        raise SourceError(
            f"{source.name}: the download is damaged or a different file: its bytes hash to {digest}, "
            f"but {expected.pop()} was expected. It was removed; try again."
        )
    entry.finish(source.size, digest)


def _fill(source: HttpSource, part: Path, progress: Callable[[int], None]) -> str:
    """Hashes what the part already holds, appends the rest, and returns the digest of it all."""
    digest = hashlib.sha256()
    have = 0
    with part.open("a+b", buffering=0) as file:
        file.seek(0)
        while piece := file.read(PIECE):
            digest.update(piece)
            have += len(piece)
            progress(len(piece))
        while have < source.size:
            data = run(source.read(have, min(PIECE, source.size - have)))
            _write(file, data, part)
            digest.update(data)
            have += len(data)
            progress(len(data))
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write(file: IO[bytes], data: Buffer, part: Path) -> None:
    """Writes all of `data`; if the disk takes only some of it, that is still a valid prefix."""
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise SourceError(
            f"{part} cannot grow: {error.strerror or error}. The download so far is kept: "
            "free some space and try again to resume it."
        ) from None


def _check_space(name: str, folder: Path, size: int, have: int) -> None:
    free = shutil.disk_usage(folder).free
    if size - have > free:
        raise SourceError(
            f"{name} needs {_megabytes(size - have)} more, but only {_megabytes(free)} are free in {folder}. "
            "Free some space, or download the file to another disk and pass its path."
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _announced(address: str) -> set[str]:
    """The SHA-256 the server announces for the file, if any.

    Model hosts redirect to their storage and put the digest in the redirect's X-Linked-ETag. If there is one, the
    storage's own ETag is ignored: it may be a different hash with just as many digits.
    """
    name = without_password(address)
    try:
        answer = request_span(address, 0, 1, Pace(name), TIMEOUT)
    except ConnectionError as error:
        raise SourceError(f"{name} cannot be reached: {error}.") from None
    answer.response.close()
    linked = [tag for headers in answer.redirects if (tag := headers["X-Linked-ETag"])]
    tags = [*linked, answer.response.headers["X-Linked-ETag"], answer.response.headers["ETag"]]
    tag = next(filter(None, tags), "")
    return {digest} if _SHA256.fullmatch(digest := tag.strip('"').lower()) else set()


def _size(path: Path) -> int | None:
    """The size of a regular file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if S_ISREG(status.st_mode) else None


def _read_json(path: Path) -> dict[str, Any]:
    """A record in the cache; empty if missing or damaged."""
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(value))
    draft.replace(path)
