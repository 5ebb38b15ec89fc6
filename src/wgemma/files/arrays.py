"""Arrays in a GGUF's metadata, as compact as in the file: a vocabulary has hundreds of thousands of strings."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, overload

from wgemma.errors import GgufError

BATCH = 4096  # strings to handle at a time
_U64 = Struct("<Q")


class NumberArray(Sequence[Any]):
    """An array of numbers or booleans from the metadata, as compact as in the file; compares equal to sequences."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, numbers: "array[Any]", boolean: bool) -> None:
        self._numbers = numbers
        self._boolean = boolean

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Any]:
        return map(bool, self._numbers) if self._boolean else iter(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [bool(number) if self._boolean else number for number in self._numbers[index]]
        return bool(self._numbers[index]) if self._boolean else self._numbers[index]

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    def __repr__(self) -> str:
        return _preview(self)


class StringArray(Sequence[str]):
    """An array of strings from the metadata, kept as the file's bytes and decoded one by one on access.

    String i is `data[starts[i] + 8 : starts[i + 1]]`, after its length; `starts` has an extra entry for the end.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: bytes, starts: "array[int]", file_offset: int) -> None:
        self.data = data
        self.starts = starts
        self._file_offset = file_offset

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringArray":
        """An array of new strings, not from a file."""
        coded = [string.encode() for string in strings]
        data = b"".join([_U64.pack(len(string)) + string for string in coded])
        return cls(data, array("I", accumulate((8 + len(string) for string in coded), initial=0)), 0)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._decode(self.starts[index], self.starts[index + 1])

    def __iter__(self) -> Iterator[str]:
        start = self.starts[0]
        decode = self._decode
        for end in self.starts[1:]:
            yield decode(start, end)
            start = end

    def utf8(self, index: int) -> bytes:
        """A string's raw bytes, not validated."""
        return self.data[self.starts[index] + 8 : self.starts[index + 1]]

    def batches(self) -> Iterator[list[bytes]]:
        """All strings as validated bytes, thousands at a time: far faster than one by one."""
        data = self.data
        for first in range(0, len(self), BATCH):
            starts = self.starts[first : first + BATCH + 1]
            batch = [data[start + 8 : end] for start, end in pairwise(starts)]
            try:
                b"\0".join(batch).decode()  # no character can span a zero
            except UnicodeDecodeError:
                for start, end in pairwise(starts):
                    self._decode(start, end)  # raises for the bad one
            yield batch

    def _decode(self, start: int, end: int) -> str:
        try:
            return self.data[start + 8 : end].decode()
        except UnicodeDecodeError:
            raise GgufError(f"at byte {self._file_offset + start + 8}: a string in an array is not UTF-8.") from None

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    def __repr__(self) -> str:
        return _preview(self)


def _equal(ours: Sequence[Any], other: object) -> bool:
    if not isinstance(other, Sequence) or isinstance(other, str | bytes):
        return False
    return len(ours) == len(other) and all(a == b for a, b in zip(ours, other, strict=True))


def _preview(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:6])
    return f"[{shown}]" if len(values) <= 6 else f"[{shown}, … {len(values)} in all]"
