"""Downloads models into the user's cache: hashed, and in pieces that can be resumed where the server gives out parts.

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
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

from wgemma.checks import human_bytes
from wgemma.errors import CutOff, GgufError, SourceError
from wgemma.files.gguf import MAGIC, Gguf
from wgemma.files.json_text import parse_json
from wgemma.files.locks import locked
from wgemma.files.parts import part_urls
from wgemma.files.sources import Buffer, HttpSource, NoRanges, content_length, is_url
from wgemma.files.web import Answer, Pace, request_span, request_whole, without_password
from wgemma.sync import run

if TYPE_CHECKING:
    from http.client import HTTPResponse

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


def download_parts(url: str, *, progress: Callable[[int], None] = lambda nbytes: None) -> Path | tuple[Path, ...]:
    """The GGUF behind `url`; if that is one part of a file, all of them."""
    paths = [download(part, progress=progress) for part in part_urls(url)]
    return paths[0] if len(paths) == 1 else tuple(paths)


def readable(target: str | Path | tuple[Path, ...]) -> str | Path | tuple[Path, ...]:
    """A model that can be read in pieces: files, or a URL, which is downloaded if its server sends only whole files."""
    if not isinstance(target, str) or not is_url(target):
        return target
    try:
        HttpSource(target, timeout=TIMEOUT).close()
    except NoRanges:
        return download_parts(target)
    return target


def _locked(lock: Path, address: str) -> AbstractContextManager[None]:
    return locked(
        lock,
        lambda owner: SourceError(f"{address} is already being downloaded by {owner}. Wait until it is done."),
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
    """Downloads the file into the cache; an interrupted download stays as a part for the next run, unless the server
    cannot resume."""
    try:
        source = HttpSource(address, timeout=TIMEOUT)
    except NoRanges:
        _fetch_whole(address, wanted, entry, progress)
        return
    if bytes(run(source.read(0, min(len(MAGIC), source.size)))) != MAGIC:
        raise _not_gguf(source.name)
    expected = _expected(source.name, wanted, _announced(address))
    origin = {"size": source.size, "validator": source.validator}
    have = _size(entry.part) or 0
    recognisable = source.validator is not None or expected
    if not (recognisable and have <= source.size and _read_json(entry.part_record) == origin):
        entry.drop_part()
        have = 0
    _check_space(source.name, entry.file.parent, source.size, have)
    _write_json(entry.part_record, origin)
    _finish(source.name, entry, source.size, _fill(source, entry.part, progress), expected)


def _not_gguf(name: str) -> GgufError:
    return GgufError(f"{name}: at byte 0: this is not a GGUF file (it does not start with 'GGUF').")


def _expected(name: str, wanted: set[str], announced: set[str]) -> set[str]:
    """The digest the file must have: none or one."""
    expected = wanted | announced
    if len(expected) > 1:
        raise SourceError(f"{name}: the URL's digest and the server's differ: {', '.join(sorted(expected))}.")
    return expected


def _finish(name: str, entry: _Entry, size: int, digest: str, expected: set[str]) -> None:
    if expected and digest not in expected:
        entry.drop_part()
        raise SourceError(
            f"{name}: the download is damaged or a different file: its bytes hash to {digest}, "
            f"but {expected.pop()} was expected. It was removed; try again."
        )
    entry.finish(size, digest)


def _fetch_whole(address: str, wanted: set[str], entry: _Entry, progress: Callable[[int], None]) -> None:
    """Downloads a file in one go from a server that does not give out parts. What an interruption leaves is useless."""
    name, pace = without_password(address), Pace(without_password(address))
    try:
        answer = request_whole(address, pace, TIMEOUT)
    except ConnectionError as error:
        raise SourceError(f"{name} cannot be reached: {error}.") from None
    entry.drop_part()
    try:
        with answer.response as response:
            if response.status != 200:
                raise SourceError(f"{name}: the server sent a part of the file, but the whole file was requested.")
            expected = _expected(name, wanted, _announcement(answer))
            size = content_length(response)
            # A server that does not say how much comes may fill half of the disk's free space.
            most = shutil.disk_usage(entry.file.parent).free // 2 if size is None else size
            _check_space(name, entry.file.parent, most, 0)
            have, digest = _pour(name, response, most, entry.part, pace, progress)
        if (size is None and _is_cut_off(entry.part)) or (size is not None and have < size):
            raise SourceError(
                f"{name}: the connection dropped after {human_bytes(have)}, and this server cannot resume. Try again."
            )
        _finish(name, entry, have, digest, expected)
    finally:
        entry.drop_part()


def _is_cut_off(part: Path) -> bool:
    """Whether a GGUF lacks its end, by its header."""
    try:
        Gguf.open(part).close()
    except GgufError as error:
        return isinstance(error, CutOff)
    return False


def _pour(
    name: str, response: "HTTPResponse", most: int, part: Path, pace: Pace, progress: Callable[[int], None]
) -> tuple[int, str]:
    """Writes a response to the part; returns how many bytes came, and their digest."""
    from http.client import HTTPException

    digest, have = hashlib.sha256(), 0
    with part.open("wb", buffering=0) as file:
        try:
            data = response.read(len(MAGIC))
            if data != MAGIC:
                raise _not_gguf(name)
            while data:
                if (have := have + len(data)) > most:
                    raise SourceError(f"{name}: the server sends more than {human_bytes(most)}, which is too much.")
                _write(file, data, part)
                digest.update(data)
                pace.count(len(data))
                progress(len(data))
                data = response.read1(1 << 20)
        except (HTTPException, OSError, ValueError):
            pace.check()  # raises if it was too slow; otherwise the missing bytes are noticed later
        os.fsync(file.fileno())
    return have, digest.hexdigest()


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
            f"{part} cannot grow: {error.strerror or error}. Free some space and try again; "
            "the download resumes where it stopped if the server can."
        ) from None


def _check_space(name: str, folder: Path, size: int, have: int) -> None:
    free = shutil.disk_usage(folder).free
    if size - have > free:
        raise SourceError(
            f"{name} needs {human_bytes(size - have)} more, but only {human_bytes(free)} are free in {folder}. "
            "Free some space, or download the file to another disk and pass its path."
        )


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
    return _announcement(answer)


def _announcement(answer: Answer) -> set[str]:
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
