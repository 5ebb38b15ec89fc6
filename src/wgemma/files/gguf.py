"""Reads GGUF files: metadata and the tensor table, never the tensors themselves.

One reader serves models, projectors, adapters and drafters, from any source, whole or in parts. Files are treated as
hostile: every count, length, offset, type and name is checked against the bytes actually there before it is used, in
Python's exact integers. Anything wrong raises a `GgufError` that names the offset, and nothing else; time and memory
stay within a small multiple of the header's size.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from struct import Struct
from struct import error as struct_error
from typing import Any, TypeVar

from wgemma.errors import CutOff, GgufError, PartsError, SourceError
from wgemma.files.arrays import NumberArray, StringArray
from wgemma.files.parts import JoinedSource, beside, in_order, part_count
from wgemma.files.quants import BY_ID, BY_NAME, UNSUPPORTED, BlockFormat
from wgemma.files.sources import Buffer, NoRanges, Source, open_source
from wgemma.sync import run

T = TypeVar("T")

MAGIC = b"GGUF"
MAX_HEADER = 256 << 20  # real ones take 15 MiB
MAX_ENTRIES = 1 << 16  # keys, and tensors: real files have about 60 and 2 000
MAX_STRING = 16 << 20
MAX_KEY = 65_535
MAX_NAME = 64
MAX_ARRAY = 1 << 23
MAX_ALIGNMENT = 4096

# Value types by id → the array module's type code. Strings (8) and arrays (9) are read by hand.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRUCTS = {kind: Struct("<" + letter) for kind, letter in _SCALARS.items()}
_BOOL, _STRING, _ARRAY = 7, 8, 9
# llama.cpp's ids for how a file was quantised.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 30: "IQ4_XS", 32: "BF16", 38: "MXFP4_MOE",
}  # fmt: skip
_U32 = Struct("<I")
_U64 = Struct("<Q")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor is. `shape` is in ggml's order: the contiguous (input) dimension comes first."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int  # absolute, in the file
    nbytes: int

    @property
    def format(self) -> BlockFormat:
        return BY_NAME[self.type]

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Gguf:
    """An open GGUF file: `metadata`, `tensors` by name, and the source their bytes come from."""

    def __init__(self, source: Source, version: int, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.source = source
        self.version = version
        self.metadata = metadata
        self.tensors = tensors

    @classmethod
    def open(cls, target: Any) -> "Gguf":
        """Opens `target`: a path, an http(s) URL, bytes or a `Source`. Of a file in parts, any one path or URL will do;
        a list names all of them."""
        return run(cls.aopen(target))

    @classmethod
    async def aopen(cls, target: Any) -> "Gguf":
        """`open`, for code that runs in an event loop."""
        all_named = isinstance(target, list | tuple)
        with ExitStack() as unless_opened:
            opened = [unless_opened.enter_context(await cls._alone(one)) for one in (target if all_named else [target])]
            if not all_named:
                for other in opened[0]._others(target):
                    opened.append(unless_opened.enter_context(await cls._beside(other, opened[0])))
            whole = opened[0] if len(opened) == 1 and part_count(opened[0].metadata) == 1 else _joined(opened)
            unless_opened.pop_all()
            return whole

    @classmethod
    def open_part(cls, target: Any) -> "Gguf":
        """Opens `target`, a part of a file, without the others."""
        return run(cls._alone(target))

    @classmethod
    async def _alone(cls, target: Any) -> "Gguf":
        source = open_source(target)
        try:
            return cls(source, *await _read_header(source))
        except GgufError as error:
            source.close()
            raise type(error)(f"{source.name}: {error}") from None
        except BaseException:
            source.close()
            raise

    @classmethod
    async def _beside(cls, target: Any, first: "Gguf") -> "Gguf":
        try:
            return await cls._alone(target)
        except NoRanges:
            raise
        except SourceError as error:
            count = part_count(first.metadata)
            raise SourceError(f"{first.source.name} is one of {count} parts, and one is missing. {error}") from None

    def _others(self, target: Any) -> list[Any]:
        """The parts of this file besides itself."""
        try:
            count = part_count(self.metadata)
            return [] if count == 1 else beside(target, count)
        except PartsError as error:
            raise PartsError(f"{self.source.name}: {error}") from None

    @property
    def parts(self) -> int:
        """How many files it consists of."""
        return len(self.source.parts) if isinstance(self.source, JoinedSource) else 1

    def read(self, name: str) -> bytes:
        """All bytes of the tensor `name`, for tools and tests; the engine streams `source` instead."""
        return run(self.aread(name))

    async def aread(self, name: str) -> bytes:
        """`read`, for code that runs in an event loop."""
        tensor = self.tensor(name)
        return bytes(await self.source.read(tensor.offset, tensor.nbytes))

    def tensor(self, name: str) -> Tensor:
        """The tensor `name`: its shape, type and place in the file."""
        try:
            return self.tensors[name]
        except KeyError:
            raise GgufError(f"{self.source.name}: there is no tensor {name!r} in this file.") from None

    @property
    def quantisation(self) -> str:
        """How the file says it was quantised, or else the type of most of its bytes."""
        said = self.metadata.get("general.file_type")
        if isinstance(said, int) and said in FILE_TYPES:
            return FILE_TYPES[said]
        sizes = dict.fromkeys((tensor.type for tensor in self.tensors.values()), 0)
        for tensor in self.tensors.values():
            sizes[tensor.type] += tensor.nbytes
        return max(sizes, key=sizes.__getitem__, default="")

    def close(self) -> None:
        """Closes the file."""
        self.source.close()

    def __enter__(self) -> "Gguf":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _joined(parts: Sequence[Gguf]) -> Gguf:
    """One file of all its parts, which may be in any order."""
    order = in_order(
        [part.source.name for part in parts], [part.metadata for part in parts], [part.tensors for part in parts]
    )
    parts = [parts[i] for i in order]
    source = JoinedSource([part.source for part in parts])
    tensors = {
        name: replace(tensor, offset=start + tensor.offset)
        for start, part in zip(source.starts, parts, strict=True)
        for name, tensor in part.tensors.items()
    }
    return Gguf(source, parts[0].version, parts[0].metadata, tensors)


class _Short(Exception):
    """Too few bytes fetched so far; parsing continues once `needed` bytes are here."""

    def __init__(self, needed: int) -> None:
        self.needed = needed


class _Cursor:
    """A position in the header. Reading past the end of the file is an error; bytes not fetched yet raise `_Short`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.limit = min(source.size, MAX_HEADER)
        self.bytes: Buffer = b""
        self.position = 0

    async def fetch(self, needed: int) -> None:
        """Makes at least `needed` bytes available, doubling so that re-parsing stays linear overall."""
        goal = min(self.limit, max(needed, 2 * len(self.bytes), self.source.first_read))
        if isinstance(self.bytes, memoryview) or not self.bytes:
            self.bytes = await self.source.read(0, goal)
        else:
            self.bytes += bytes(await self.source.read(len(self.bytes), goal - len(self.bytes)))

    async def parse(self, rule: Callable[["_Cursor"], T]) -> T:
        start = self.position
        while True:
            try:
                return rule(self)
            except _Short as short:
                self.position = start
                await self.fetch(short.needed)

    def fail(self, reason: str, at: int | None = None) -> GgufError:
        return GgufError(f"at byte {self.position if at is None else at}: {reason}")

    def cut(self, what: str, at: int | None = None) -> GgufError:
        return CutOff(str(self.fail(f"the file ends inside {what}. Is the download complete?", at)))

    def left(self) -> int:
        return self.limit - self.position

    def skip(self, length: int, what: str) -> int:
        """Skips `length` bytes, which must be there; returns where they start."""
        start = self.position
        if length > self.left():
            if self.limit == MAX_HEADER < self.source.size:
                raise self.fail(f"the header is longer than {MAX_HEADER >> 20} MiB.")
            raise self.cut(what)
        if start + length > len(self.bytes):
            raise _Short(start + length)
        self.position += length
        return start

    def number(self, form: Struct, what: str) -> Any:
        return form.unpack_from(self.bytes, self.skip(form.size, what))[0]

    def count(self, what: str, most: int, smallest: int) -> int:
        """A 64-bit count of items of at least `smallest` bytes each, checked against the bytes left."""
        count: int = self.number(_U64, f"the number of {what}")
        if count > most:
            raise self.fail(f"{count} {what} are more than the {most} allowed.", self.position - 8)
        if count * smallest > self.left():
            raise self.fail(
                f"{count} {what} do not fit in the {self.left()} bytes left. Is the file complete?", self.position - 8
            )
        return count

    def string(self, what: str, most: int) -> str:
        start = self.position
        length = self.number(_U64, f"the length of {what}")
        if length > most or length > self.left():
            limit = min(most, self.left())
            raise self.fail(f"{what} claims {length} bytes; at most {limit} are possible.", start)
        begin = self.skip(length, what)
        try:
            return bytes(self.bytes[begin : begin + length]).decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8.", begin) from None


async def _read_header(source: Source) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
    cursor = _Cursor(source)
    version, tensor_count, key_count = await cursor.parse(_preamble)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        start = cursor.position
        key, value = await cursor.parse(_entry)
        if key in metadata:
            raise cursor.fail(f"the key {key!r:.80} appears twice.", start)
        metadata[key] = value
    alignment = _alignment(metadata, cursor)
    found: dict[str, Tensor] = {}
    for _ in range(tensor_count):
        start = cursor.position
        tensor = await cursor.parse(_tensor_info)
        if tensor.name in found:
            raise cursor.fail(f"the tensor {tensor.name!r} appears twice.", start)
        if tensor.offset % alignment:
            raise cursor.fail(f"{tensor.name!r} starts at {tensor.offset}, not a multiple of {alignment}.", start)
        found[tensor.name] = tensor
    data_start = -(-cursor.position // alignment) * alignment
    return version, metadata, _place(found, data_start, source.size)


def _preamble(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.skip(4, "the magic number")
    if bytes(cursor.bytes[magic : magic + 4]) != MAGIC:
        raise cursor.fail("this is not a GGUF file (it does not start with 'GGUF').", magic)
    version = cursor.number(_U32, "the version")
    if version not in (2, 3):
        hint = " It is big-endian." if version in (2 << 24, 3 << 24) else ""
        raise cursor.fail(f"GGUF version {version} is not supported, only 2 and 3.{hint}", 4)
    # A tensor takes at least name length + 1 byte + dims + one dim + type + offset; a key at least 8 + 1 + 4 + 1.
    tensors = cursor.count("tensors", MAX_ENTRIES, 33)
    return version, tensors, cursor.count("metadata keys", MAX_ENTRIES, 14)


def _entry(cursor: _Cursor) -> tuple[str, Any]:
    start = cursor.position
    key = cursor.string("a metadata key", MAX_KEY)
    if not key:
        raise cursor.fail("a metadata key is empty.", start)
    kind = cursor.number(_U32, f"the type of {key!r:.80}")
    if kind == _STRING:
        return key, cursor.string(f"the value of {key!r:.80}", MAX_STRING)
    if kind == _ARRAY:
        return key, _array(cursor, key)
    if kind not in _STRUCTS:
        raise cursor.fail(f"{key!r:.80} has unknown value type {kind}.", cursor.position - 4)
    value = cursor.number(_STRUCTS[kind] if kind != _BOOL else _STRUCTS[0], f"the value of {key!r:.80}")
    if kind == _BOOL:
        if value > 1:
            raise cursor.fail(f"{key!r:.80} is a boolean but holds {value}.", cursor.position - 1)
        value = bool(value)
    return key, value


def _array(cursor: _Cursor, key: str) -> NumberArray | StringArray:
    kind = cursor.number(_U32, f"the element type of {key!r:.80}")
    if kind == _STRING:
        return _string_array(cursor, key, cursor.count(f"strings in {key!r:.80}", MAX_ARRAY, 8))
    if kind == _ARRAY:
        raise cursor.fail(f"{key!r:.80} is an array of arrays, which no Gemma file has.", cursor.position - 4)
    if kind not in _SCALARS:
        raise cursor.fail(f"{key!r:.80} has elements of unknown type {kind}.", cursor.position - 4)
    letter = "B" if kind == _BOOL else _SCALARS[kind]
    numbers: array[Any] = array(letter)
    width = _STRUCTS[kind].size
    assert numbers.itemsize == width
    count = cursor.count(f"elements of {key!r:.80}", MAX_ARRAY, width)
    start = cursor.skip(count * width, f"the elements of {key!r:.80}")
    numbers.frombytes(cursor.bytes[start : start + count * width])
    if kind == _BOOL and count and max(numbers) > 1:
        raise cursor.fail(f"{key!r:.80} holds booleans other than 0 and 1.", start)
    if sys.byteorder == "big":
        numbers.byteswap()
    return NumberArray(numbers, boolean=kind == _BOOL)


def _string_array(cursor: _Cursor, key: str, count: int) -> StringArray:
    """Walks `count` strings, checking every length. The loop is tight because vocabularies are long."""
    data, begin, limit = cursor.bytes, cursor.position, cursor.limit
    unpack = _U64.unpack_from
    starts = array("I", bytes(4 * (count + 1)))
    position = begin
    try:
        for index in range(count):
            starts[index] = position - begin
            length = unpack(data, position)[0]
            position += 8 + length
            if position > limit or length > MAX_STRING:
                most = min(MAX_STRING, limit - position + length)
                raise cursor.fail(
                    f"string {index} of {key!r:.80} claims {length} bytes; at most {most} are possible.",
                    begin + starts[index],
                )
    except struct_error:
        if position + 8 > limit:
            raise cursor.cut(f"{key!r:.80}", position) from None
        raise _Short(position + 8) from None
    starts[count] = position - begin
    cursor.skip(position - begin, f"the strings of {key!r:.80}")
    return StringArray(bytes(data[begin:position]), starts, begin)


def _tensor_info(cursor: _Cursor) -> Tensor:
    """One row of the tensor table; `offset` is still relative to the start of the data."""
    start = cursor.position
    name = cursor.string("a tensor name", MAX_NAME)
    if not name:
        raise cursor.fail("a tensor name is empty.", start)
    dims = cursor.number(_U32, f"the rank of {name!r}")
    if not 1 <= dims <= 4:
        raise cursor.fail(f"{name!r} has {dims} dimensions; 1 to 4 are allowed.", cursor.position - 4)
    shape = tuple(cursor.number(_U64, f"the shape of {name!r}") for _ in range(dims))
    if min(shape) < 1:
        raise cursor.fail(f"{name!r} has an empty dimension: {list(shape)}.", cursor.position - 8 * dims)
    kind = cursor.number(_U32, f"the type of {name!r}")
    block = BY_ID.get(kind)
    if block is None:
        known, instead = UNSUPPORTED.get(kind, (f"number {kind}", "Q8_0"))
        raise cursor.fail(
            f"{name!r} has type {known}, which wgemma cannot read; {instead} would work.", cursor.position - 4
        )
    if shape[0] % block.elements:
        raise cursor.fail(
            f"{name!r} has rows of {shape[0]} values, but {block.name} blocks hold {block.elements}.",
            cursor.position - 4 - 8 * dims,
        )
    offset = cursor.number(_U64, f"the offset of {name!r}")
    return Tensor(name, shape, block.name, offset, block.row_nbytes(shape[0]) * prod(shape[1:]))


def _alignment(metadata: dict[str, Any], cursor: _Cursor) -> int:
    alignment = metadata.get("general.alignment", 32)
    valid = isinstance(alignment, int) and not isinstance(alignment, bool)
    if not valid or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r:.80}; it must be a power of two up to {MAX_ALIGNMENT}.")
    return int(alignment)


def _place(tensors: dict[str, Tensor], data_start: int, size: int) -> dict[str, Tensor]:
    """The tensors with absolute offsets, checked to be inside the file and not to overlap."""
    placed: dict[str, Tensor] = {}
    for tensor in tensors.values():
        offset = data_start + tensor.offset
        if offset + tensor.nbytes > size:
            raise CutOff(
                f"at byte {offset}: {tensor.name!r} needs {tensor.nbytes} bytes, but the file ends at {size}. "
                "Is the download complete?"
            )
        placed[tensor.name] = Tensor(tensor.name, tensor.shape, tensor.type, offset, tensor.nbytes)
    by_offset = sorted(placed.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(by_offset):
        if before.offset + before.nbytes > after.offset:
            raise GgufError(f"at byte {after.offset}: {after.name!r} overlaps {before.name!r}.")
    return placed
