"""Where bytes come from: a file, memory, a web server. A source knows its size and reads any span.

Reads are coroutines because a page has no other way; natively they complete at once (see `wgemma.sync`). A span outside
the source raises `SourceError`, never a short read. Bytes for the GPU are requested as pieces, because in a page they
never enter Python's memory.
"""

import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import finalize

from wgemma.errors import SourceError
from wgemma.files.paths import user_path
from wgemma.files.web import Busy, Manners, Pace, request_span, without_password

if TYPE_CHECKING:
    from http.client import HTTPResponse

Buffer: TypeAlias = bytes | memoryview
PAUSE = 0.1  # seconds before the second try; it doubles from then on

_SIZE = re.compile("[0-9]{1,18}")


class Source(Protocol):
    """`first_read` is how much to read first when the header's length is not known yet."""

    name: str
    size: int
    first_read: int

    async def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`."""
        ...

    async def piece(self, offset: int, length: int) -> Any:
        """The same, in a form the device's `write` takes; valid until the next piece."""
        ...

    async def rows(self, offsets: Sequence[int], length: int) -> Any:
        """Spans of equal length, concatenated into one piece and zero-padded to a whole word."""
        ...

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Announces the next pieces as (offset, length), in roughly this order, replacing earlier announcements. A slow
        source may prefetch them."""
        ...

    def expect_rows(self, offsets: Sequence[int], length: int) -> None:
        """Announces rows that will be read soon."""
        ...

    def close(self) -> None: ...


def is_url(text: str) -> bool:
    return text.lower().startswith(("http://", "https://"))


def open_source(target: Any) -> Source:
    """A source for bytes, a path, an http(s) URL, or a source itself."""
    if isinstance(target, bytes | bytearray | memoryview):
        return MemorySource(bytes(target))
    if isinstance(target, str) and is_url(target):
        return HttpSource(target)
    if hasattr(target, "first_read"):
        source: Source = target
        return source
    return FileSource(target)


def check_span(source: Source, offset: int, length: int) -> None:
    """Raises `SourceError` if the span is not inside the source."""
    if offset < 0 or length < 0 or offset + length > source.size:
        raise SourceError(
            f"{source.name}: bytes {offset}–{offset + length} were requested, but there are only {source.size}."
        )


class NativeSource:
    """A source whose pieces are plain bytes."""

    async def read(self, offset: int, length: int) -> Buffer:
        raise NotImplementedError

    async def piece(self, offset: int, length: int) -> Buffer:
        return await self.read(offset, length)

    async def rows(self, offsets: Sequence[int], length: int) -> Buffer:
        rows = b"".join([await self.read(offset, length) for offset in offsets])
        return rows + bytes(-len(rows) % 4)

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Ignored: a disk needs no hint."""

    def expect_rows(self, offsets: Sequence[int], length: int) -> None:
        """Ignored, too."""


class MemorySource(NativeSource):
    """Bytes already in memory."""

    def __init__(self, data: bytes, name: str = "<bytes>") -> None:
        self.name = name
        self.size = len(data)
        self.first_read = self.size
        self._view = memoryview(data)

    async def read(self, offset: int, length: int) -> Buffer:
        check_span(self, offset, length)
        return self._view[offset : offset + length]

    def close(self) -> None:
        self._view = memoryview(b"")
        self.size = 0


class FileSource(NativeSource):
    """A regular file. Every read is a copy: a file that shrinks under a memory map would kill the process. Devices,
    pipes and folders are refused."""

    first_read = 16 << 20  # a real model's header takes nearly all of it

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = user_path(path)
        self.name = str(path)
        # Without O_NONBLOCK, opening a pipe that nobody writes to would block forever.
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            handle = os.open(path, flags)
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file.") from None
        except OSError as error:
            raise SourceError(f"{path} cannot be opened: {error.strerror or error}.") from None
        self._handle = handle
        self._close = finalize(self, os.close, handle)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            self._close()
            raise SourceError(f"{path} is not a regular file.")
        self.size = status.st_size
        self._room = bytearray()  # for pieces

    async def read(self, offset: int, length: int) -> Buffer:
        check_span(self, offset, length)
        try:
            data = bytearray(length)
        except MemoryError:
            raise SourceError(f"{self.name}: there is no memory for {length} bytes of it.") from None
        return self._fill(memoryview(data), offset)

    async def piece(self, offset: int, length: int) -> Buffer:
        check_span(self, offset, length)
        if len(self._room) < length:  # fresh memory would take longer than reading
            self._room = bytearray(length)
        return self._fill(memoryview(self._room)[:length], offset)

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Frees the room for earlier pieces."""
        self._room = bytearray()

    def _fill(self, view: memoryview, offset: int) -> memoryview:
        done = 0
        try:
            while done < len(view) and (count := _read_into(self._handle, view[done:], offset + done)):
                done += count
        except OSError as error:
            raise SourceError(f"{self.name} cannot be read: {error.strerror or error}.") from None
        if done < len(view):
            raise SourceError(f"{self.name} is shorter than before: it changed while in use. Load it again.")
        return view.toreadonly()

    def close(self) -> None:
        self._close()
        self.size = 0


def _seek_and_read(handle: int, view: memoryview, offset: int) -> int:
    with _seeking:
        os.lseek(handle, offset, os.SEEK_SET)
        data = os.read(handle, len(view))
    view[: len(data)] = data
    return len(data)


def _read_at(handle: int, view: memoryview, offset: int) -> int:
    return os.preadv(handle, [view], offset)


_seeking = Lock()
_read_into = _read_at if hasattr(os, "preadv") else _seek_and_read


class NoRanges(SourceError):
    """A web server that sends only whole files; `size` is this one's, if the server says."""

    def __init__(self, name: str, size: int | None) -> None:
        super().__init__(
            f"{name}: the server ignores Range requests, so wgemma cannot read parts of the file. "
            "Download the file and pass its path instead."
        )
        self.size = size


class HttpSource(NativeSource):
    """A file on a web server that supports Range requests; a dropped connection is resumed where it broke."""

    first_read = 1 << 20

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        attempts: int = 5,
        manners: Manners = Manners(),  # noqa: B008
    ) -> None:
        self.name = without_password(url)
        if not is_url(url):
            raise SourceError(f"{self.name}: only http and https are supported.")
        self._url = url
        self._timeout = timeout
        self._attempts = attempts
        self._manners = manners
        self.validator: str | None = None
        self.size = 0
        probe = self._probe()
        self.size = self._check_range(probe, 0)
        self.validator = probe.headers.get("ETag") or probe.headers.get("Last-Modified")
        probe.close()

    def _probe(self) -> "HTTPResponse":
        """The answer to a first request; a server that is busy is asked again."""
        pace, failures = Pace(self.name), 0
        while True:
            try:
                return self._request(0, 1, pace)
            except ConnectionError as error:
                failures += 1
                if not isinstance(error, Busy) or failures >= self._attempts:
                    raise SourceError(f"{self.name} cannot be reached: {error}.") from None
                time.sleep(PAUSE * 2**failures)

    async def read(self, offset: int, length: int) -> Buffer:
        check_span(self, offset, length)
        data = bytearray()
        failures = 0
        pace = Pace(self.name)
        while len(data) < length:
            had = len(data)
            try:
                self._append(data, offset + had, length - had, pace)
                trouble = "the connection dropped"
            except OSError as error:
                trouble = str(error) or type(error).__name__
            if len(data) > had:
                failures = 0
            elif (failures := failures + 1) >= self._attempts:
                raise SourceError(
                    f"{self.name}: no data after {failures} tries ({trouble}). Check the connection and try again."
                )
            else:
                time.sleep(PAUSE * 2**failures)
        return bytes(data)

    def close(self) -> None:
        """Every request closes its own connection."""

    def _append(self, data: bytearray, offset: int, length: int, pace: Pace) -> None:
        """Adds what one request delivers of [offset, offset + length): all of it, or less if the connection drops."""
        from http.client import HTTPException

        response = self._request(offset, length, pace)
        with response:
            if self._check_range(response, offset) != self.size:
                raise SourceError(f"{self.name} changed its size during the download. Start again.")
            validator = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if self.validator is not None and validator != self.validator:
                raise SourceError(f"{self.name} changed on the server during the download. Start again.")
            try:
                while length > 0 and (piece := response.read1(min(length, 1 << 20))):
                    data += piece
                    length -= len(piece)
                    pace.count(len(piece))
            except (HTTPException, ValueError):
                return  # dropped inside a chunk, or a bad one: everything before it is good

    def _request(self, offset: int, length: int, pace: Pace) -> "HTTPResponse":
        return request_span(self._url, offset, length, pace, self._timeout, self._manners).response

    def _check_range(self, response: "HTTPResponse", offset: int) -> int:
        """The size of the whole file, from a response that must be the requested span."""
        header = response.headers.get("Content-Range", "")
        unit, _, rest = header.partition(" ")
        span, _, total = rest.partition("/")
        start = span.partition("-")[0]
        if response.status == 206 and unit == "bytes" and start == str(offset) and _SIZE.fullmatch(total):
            return int(total)
        response.close()
        if response.status == 206:
            raise SourceError(f"{self.name}: the server sent a different span than requested ({header!r:.80}).")
        raise NoRanges(self.name, content_length(response))


def content_length(response: "HTTPResponse") -> int | None:
    """The length of the body, if the server says."""
    header = response.headers.get("Content-Length", "")
    return int(header) if _SIZE.fullmatch(header) else None
