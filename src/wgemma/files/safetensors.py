"""Reads and writes safetensors: named float tensors after a JSON header.

    length of the header (u64) · header · data
    header = {name: {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, end]}, "__metadata__": {…}}

Offsets count from the start of the data. Files are treated as hostile: every length, type, shape and offset is checked
against the bytes actually there before it is used. Anything wrong raises an `AdapterError`.
"""

import json
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import IO, Any, TypeGuard

from wgemma.errors import AdapterError
from wgemma.files.floats import float_bytes, floats
from wgemma.files.json_text import parse_json
from wgemma.files.sources import Source, open_source
from wgemma.sync import run

MAX_HEADER = 16 << 20  # an adapter of a thousand matrices needs 150 kB
MAX_TENSORS = 1 << 16
MAX_NAME = 512
MAX_DIMENSIONS = 4
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}  # bytes per number of the supported types
METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor is. `shape` has the contiguous dimension last."""

    dtype: str
    shape: tuple[int, ...]
    offset: int  # absolute, in the file
    nbytes: int


class Safetensors:
    """An open file: `tensors` by name, `metadata`, and the source their bytes come from."""

    def __init__(self, source: Source, tensors: dict[str, StoredTensor], metadata: dict[str, Any]) -> None:
        self.source = source
        self.tensors = tensors
        self.metadata = metadata

    @classmethod
    def open(cls, target: Any) -> "Safetensors":
        """Opens a path, bytes or a `Source`."""
        return run(cls.aopen(target))

    @classmethod
    async def aopen(cls, target: Any) -> "Safetensors":
        source = open_source(target)
        try:
            return cls(source, *await _read_header(source))
        except AdapterError as error:
            source.close()
            raise AdapterError(f"{source.name}: {error}") from None
        except BaseException:
            source.close()
            raise

    def read(self, name: str) -> "array[float]":
        """The numbers of one tensor as float32, in the file's order."""
        return run(self.aread(name))

    async def aread(self, name: str) -> "array[float]":
        entry = self.tensors[name]
        return floats(await self.source.read(entry.offset, entry.nbytes), entry.dtype)

    def close(self) -> None:
        self.source.close()

    def __enter__(self) -> "Safetensors":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _read_header(source: Source) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    if source.size < 8:
        raise AdapterError("the file is too short to be safetensors. Is the download complete?")
    (length,) = struct.unpack("<Q", await source.read(0, 8))
    if length > MAX_HEADER:
        raise AdapterError(f"this is not a safetensors file, or a damaged one: its header claims {length} bytes.")
    start = 8 + length
    if start > source.size:
        raise AdapterError("the file ends inside its header. Is the download complete?")
    try:
        header = parse_json(bytes(await source.read(8, length)), _unique)
    except ValueError as error:
        raise AdapterError(f"this is not a safetensors file, or a damaged one: its header is {error}.") from None
    if not isinstance(header, dict):
        raise AdapterError("the header is not a JSON object.")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict):
        raise AdapterError(f"{METADATA} is not a JSON object.")
    if len(header) > MAX_TENSORS:
        raise AdapterError(f"{len(header)} tensors are more than the {MAX_TENSORS} allowed.")
    tensors = {name: _entry(name, fields, start, source.size) for name, fields in header.items()}
    _refuse_overlap(tensors)
    return tensors, metadata


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without duplicate keys, because readers disagree about which one counts."""
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise AdapterError(f"{key[:80]!r} appears twice.")
        fields[key] = value
    return fields


def _entry(name: str, fields: Any, start: int, size: int) -> StoredTensor:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise AdapterError(f"{name[:80]!r} is not a valid tensor name.")
    if not isinstance(fields, dict):
        raise AdapterError(f"the entry of {name!r} is not a JSON object.")
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in WIDTHS:
        raise AdapterError(f"{name!r} has type {dtype!r:.40}; wgemma reads {', '.join(WIDTHS)}.")
    if not _sizes(shape) or not 1 <= len(shape) <= MAX_DIMENSIONS or min(shape) < 1:
        raise AdapterError(f"{name!r} has shape {shape!r:.80}, which is not a matrix.")
    if not _sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1]:
        raise AdapterError(f"{name!r} has offsets {offsets!r:.80}, which are not a span of bytes.")
    begin, end = offsets
    if start + end > size:
        raise AdapterError(f"{name!r} ends at byte {start + end} of {size}. Is the download complete?")
    if prod(shape) * WIDTHS[dtype] != end - begin:
        raise AdapterError(f"{name!r} is {list(shape)} of {dtype}, but takes {end - begin} bytes.")
    return StoredTensor(dtype, tuple(shape), start + begin, end - begin)


def _sizes(value: Any) -> TypeGuard[list[int]]:
    """Whether this is a list of non-negative integers, none larger than a file can be."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in value)


def _refuse_overlap(tensors: Mapping[str, StoredTensor]) -> None:
    by_offset = sorted(tensors.items(), key=lambda item: item[1].offset)
    for (before, first), (after, second) in pairwise(by_offset):
        if first.offset + first.nbytes > second.offset:
            raise AdapterError(f"{after!r} overlaps {before!r}.")


def write_safetensors(
    file: IO[bytes],
    tensors: "Mapping[str, tuple[tuple[int, ...], array[float]]]",
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a file of F32 tensors, each a shape and its numbers, sorted by name."""
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    offset = 0
    for name in sorted(tensors):
        shape, values = tensors[name]
        if prod(shape) != len(values):
            raise ValueError(f"{name} has {len(values)} numbers, but its shape takes {prod(shape)}")
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of eight
    file.write(struct.pack("<Q", len(text)) + text)
    for name in sorted(tensors):
        file.write(float_bytes(tensors[name][1]))
