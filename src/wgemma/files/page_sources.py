"""Sources in a web page: the bytes stay in JavaScript's memory, and Python sees only what it has to inspect.

A web server, the browser's storage and a picked file all look the same here: a source from web/sources.js. Headers and
small vectors are copied into Python; pieces on their way to the GPU and images are not.
"""

from array import array
from collections.abc import Iterable, Sequence
from inspect import isawaitable
from time import perf_counter
from typing import Any

from wgemma.errors import SourceError
from wgemma.files.images import Pixels
from wgemma.files.sources import Buffer, check_span


class PageError(SourceError):
    """An error from the page's JavaScript; `code` is one of web/trouble.js."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


async def answered(answer: Any) -> Any:
    """The result of a JavaScript function, awaited if it is a promise; its errors become `PageError`s."""
    try:
        return await answer if isawaitable(answer) else answer
    except Exception as error:
        raise complaint(error) from None


def complaint(error: Exception) -> Exception:
    code = getattr(error, "code", None)
    return PageError(str(getattr(error, "message", error)), code) if isinstance(code, str) else error


def js_numbers(numbers: Iterable[int]) -> Any:
    """Numbers for JavaScript, copied in one go."""
    from pyodide.ffi import to_js

    return to_js(array("d", numbers))


class PageSource:
    """A source from web/sources.js."""

    first_read = 16 << 20  # a real model's header takes nearly all of it

    def __init__(self, source: Any, name: str = "") -> None:
        self._source = source
        self.name = name or str(source.name)
        self.size = int(source.size)
        self.waited = 0.0  # seconds spent waiting for bytes

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        self._source.expect(js_numbers(number for span in spans for number in span))

    def expect_rows(self, offsets: Sequence[int], length: int) -> None:
        self._source.expectRows(js_numbers(offsets), length)

    async def read(self, offset: int, length: int) -> Buffer:
        data: bytes = (await self.piece(offset, length)).to_bytes()
        return data

    async def piece(self, offset: int, length: int) -> Any:
        check_span(self, offset, length)
        began = perf_counter()
        try:
            answer = self._source.read(offset, length)
        except Exception as error:
            raise complaint(error) from None
        piece = await answered(answer)
        self.waited += perf_counter() - began
        return piece

    async def rows(self, offsets: Sequence[int], length: int) -> Any:
        for offset in offsets:
            check_span(self, offset, length)
        try:
            answer = self._source.rows(js_numbers(offsets), length)
        except Exception as error:
            raise complaint(error) from None
        return await answered(answer)

    async def finished(self) -> None:
        """Returns once the file is complete, wherever it is stored, and its hash is right."""
        await answered(self._source.finished())

    def close(self) -> None:
        self._source.close()

    async def discard(self) -> None:
        """Closes the file and deletes what was saved of it."""
        await answered(self._source.close(True))


class PagePixels(Pixels):
    """An image decoded by the browser (web/media.js)."""

    __slots__ = ("_picture",)
    _picture: Any

    def __init__(self, picture: Any) -> None:
        for name, value in {"width": int(picture.width), "height": int(picture.height), "rgba": b""}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_picture", picture)

    @property
    def key(self) -> str:
        return str(self._picture.key)

    def rows(self, first: int, last: int) -> Any:
        return self._picture.rows(first, last)
