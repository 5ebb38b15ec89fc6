"""GGUF files in parts: NAME-00001-of-00005.gguf and so on, as llama.cpp writes them.

The metadata of every part says which one it is (`split.no`, from 0), how many there are (`split.count`) and how many
tensors all of them hold (`split.tensors.count`). The first part has the other metadata, too. A tensor lies in one part.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wgemma.errors import PartsError
from wgemma.files.sources import Buffer, Source, check_span, is_url

MAX_PARTS = 256  # each is an open file

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(?is)(?P<stem>.*)-(?P<number>[0-9]{5})(?P<of>-of-)(?P<count>[0-9]{5})(?P<end>\.gguf)")
_BLOB = re.compile(r"(?is)(.*[/\\])?sha256-[0-9a-f]{64}")  # in a store, whose names say nothing of a file's parts


def part_count(metadata: Mapping[str, Any]) -> int:
    """How many parts the file of this metadata has: 1 if it is whole."""
    count = metadata.get(_COUNT, 1)
    if not isinstance(count, int) or count <= 1:
        return 1
    if count > MAX_PARTS:
        raise PartsError(f"this is one of {count} parts ({_COUNT}); at most {MAX_PARTS} are possible.")
    return count


def part_names(name: str) -> list[str]:
    """The names of all parts, in order, given the name of any; only `name` itself if it is not a part's."""
    found = _NAME.fullmatch(name)
    count = int(found["count"]) if found else 1
    if found is None or not 2 <= count <= MAX_PARTS or not 1 <= int(found["number"]) <= count:
        return [name]
    return [f"{found['stem']}-{i:05}{found['of']}{count:05}{found['end']}" for i in range(1, count + 1)]


def whole_name(name: str) -> str:
    """The name that all parts share: model-00001-of-00003.gguf → model.gguf."""
    found = _NAME.fullmatch(name)
    return name if found is None or len(part_names(name)) == 1 else found["stem"] + found["end"]


def part_urls(url: str) -> list[str]:
    """The same for URLs; a #sha256= stays with the part it was written for."""
    with suppress(ValueError):
        pieces = urlsplit(url)
        folder, slash, name = pieces.path.rpartition("/")
        names = part_names(name)
        if len(names) > 1:
            others = pieces._replace(fragment="")
            return [url if other == name else others._replace(path=folder + slash + other).geturl() for other in names]
    return [url]


def beside(target: Any, count: int) -> list[Any]:
    """The other parts of a file by their names, given the path or URL of one; `count` is what its metadata says. Which
    of them is which, their metadata says."""
    itself: Any = target
    if isinstance(target, str) and is_url(target):
        found: list[Any] = list(part_urls(target))
    elif isinstance(target, str | Path):
        itself = Path(target)
        found = [itself.with_name(name) for name in part_names(itself.name)]
    else:
        raise PartsError(f"this is one of {count} parts ({_COUNT}). Open all of them together.")
    if len(found) != count and _BLOB.fullmatch(str(itself)):
        raise PartsError(f"this is one of {count} parts ({_COUNT}), and the others are missing. Get the model again.")
    if len(found) != count:
        raise PartsError(
            f"this is one of {count} parts ({_COUNT}), and its name does not say what the others are called. "
            f"The name of the first must end in -00001-of-{count:05}.gguf, and so on."
        )
    return [part for part in found if part != itself]


def in_order(names: Sequence[str], headers: Sequence[Mapping[str, Any]], tensors: Sequence[Iterable[str]]) -> list[int]:
    """Where each part of one file stands among `names`, first to last; raises `PartsError` unless all parts are there,
    once each, and belong together."""
    try:
        count = part_count(headers[0])
    except PartsError as error:
        raise PartsError(f"{names[0]}: {error}") from None
    places: dict[int, int] = {}
    for i, (name, header) in enumerate(zip(names, headers, strict=True)):
        number = header.get(_NUMBER)
        if part_count(header) == 1 or type(number) is not int or not 0 <= number < part_count(header):
            raise PartsError(f"{name} is not a part of a larger file. Load it alone, or leave it out.")
        if part_count(header) != count:
            raise PartsError(
                f"{name} is one of {part_count(header)} parts, but {names[0]} is one of {count}: "
                "they belong to different files."
            )
        if number in places:
            raise PartsError(f"{names[places[number]]} and {name} are both part {number + 1} of {count}.")
        places[number] = i
    missing = [str(number + 1) for number in range(count) if number not in places]
    if missing:
        lacking = f"part {missing[0]} is" if len(missing) == 1 else f"parts {', '.join(missing[:8])} are"
        raise PartsError(f"{names[0]} has {count} parts, and {lacking} missing.")
    order = [places[number] for number in range(count)]
    _check_fit([names[i] for i in order], [headers[i] for i in order], [tensors[i] for i in order])
    return order


def _check_fit(names: Sequence[str], headers: Sequence[Mapping[str, Any]], tensors: Sequence[Iterable[str]]) -> None:
    first = headers[0]
    for name, header in zip(names, headers, strict=True):
        for key, value in header.items():
            if key != _NUMBER and key in first and first[key] != value:
                raise PartsError(f"{name} is a part of another file than {names[0]}: their {key!r:.80} differ.")
    owners: dict[str, str] = {}
    for name, part in zip(names, tensors, strict=True):
        for tensor in part:
            if tensor in owners:
                raise PartsError(
                    f"{owners[tensor]} and {name} both hold the tensor {tensor!r}: they belong to different files."
                )
            owners[tensor] = name
    if len(owners) != first.get(_TENSORS, len(owners)):
        raise PartsError(
            f"the parts of {names[0]} hold {len(owners)} tensors, but its {_TENSORS} is "
            f"{first[_TENSORS]!r:.40}: one of them belongs to another file."
        )


class JoinedSource:
    """Several sources end to end: part i begins at `starts[i]`. A span must not cross from one into the next."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.name = parts[0].name
        self.first_read = parts[0].first_read
        self.parts = parts
        *self.starts, self.size = accumulate((part.size for part in parts), initial=0)
        self._announced: dict[int, list[tuple[int, int]]] = {}

    def _place(self, offset: int, length: int) -> tuple[int, int]:
        """Which part holds a span, and where it is in there."""
        check_span(self, offset, length)
        i = max(bisect_right(self.starts, offset) - 1, 0)
        return i, offset - self.starts[i]

    async def read(self, offset: int, length: int) -> Buffer:
        i, place = self._place(offset, length)
        return await self.parts[i].read(place, length)

    async def piece(self, offset: int, length: int) -> Any:
        i, place = self._place(offset, length)
        self._announce(i)
        return await self.parts[i].piece(place, length)

    async def rows(self, offsets: Sequence[int], length: int) -> Any:
        i, places = self._rows_of(offsets, length)
        return await self.parts[i].rows(places, length)

    def expect(self, spans: Iterable[tuple[int, int]]) -> None:
        """Tells each part when it is first read from, so that only one of them reads far ahead at a time."""
        self._announced = {i: [] for i in range(len(self.parts))}
        first: int | None = None
        for offset, length in spans:
            i, place = self._place(offset, length)
            first = i if first is None else first
            self._announced[i].append((place, length))
        for i in [i for i, waiting in self._announced.items() if not waiting or i == first]:
            self._announce(i)

    def _announce(self, i: int) -> None:
        if i in self._announced:
            self.parts[i].expect(self._announced.pop(i))

    def expect_rows(self, offsets: Sequence[int], length: int) -> None:
        i, places = self._rows_of(offsets, length)
        self.parts[i].expect_rows(places, length)

    def _rows_of(self, offsets: Sequence[int], length: int) -> tuple[int, list[int]]:
        """Rows are those of one tensor, so they lie in one part."""
        i = self._place(offsets[0], length)[0] if offsets else 0
        return i, [offset - self.starts[i] for offset in offsets]

    def close(self) -> None:
        for part in self.parts:
            part.close()
        self.size = 0
