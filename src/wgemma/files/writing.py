"""Writes files all or nothing, such that a power cut does not undo it; and GGUF files in particular: metadata and
tensors, in the layout every reader expects."""

import errno
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from wgemma.checks import kind_of
from wgemma.files.gguf import Tensor
from wgemma.files.quants import BY_NAME

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write: its type, its shape with the contiguous dimension first, and its blocks."""

    type: str
    shape: tuple[int, ...]
    data: bytes | memoryview


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that replaces `path` on success, for good; on failure `path` stays as it was. Whatever is wrong
    with the path is an `OSError`."""
    if not path.name or "\0" in str(path):
        raise OSError(errno.EINVAL, "this cannot be a file's name", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "a folder or a device has this name", str(path))
    partial = path.with_name(path.name + ".part")
    partial.unlink(missing_ok=True)  # opening a pipe left there would block
    try:
        with partial.open("xb") as file:
            yield file
            settle(file)
        partial.replace(path)
        settle_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def settle(file: IO[bytes]) -> None:
    """Blocks until what was written is on the disk; without it, a power cut could leave a truncated file."""
    file.flush()
    os.fsync(file.fileno())


def settle_folder(folder: Path) -> None:
    """Blocks until the names in a folder are on the disk, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, NewTensor]) -> None:
    """Writes a file; keys are sorted, tensors keep their order."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [_string(key) + _value(metadata[key]) for key in sorted(metadata)]
    offset = 0
    for name, tensor in tensors.items():
        expected = _nbytes(tensor)
        if len(tensor.data) != expected:
            raise ValueError(f"{name} has {len(tensor.data)} bytes, but its shape and type take {expected}")
        head.append(_row(name, tensor.shape, tensor.type) + struct.pack("<Q", offset))
        offset += _padded(expected)
    with replacing(path) as file:
        header = b"".join(head)
        file.write(header + bytes(_padded(len(header)) - len(header)))
        for tensor in tensors.values():
            file.write(tensor.data)
            file.write(bytes(_padded(len(tensor.data)) - len(tensor.data)))


def revised_header(
    head: bytes,
    tensors: Sequence[Tensor],
    kinds: Mapping[str, str],
    added: tuple[str, Tensor, str] | None,
    size: int,
    alignment: int,
) -> tuple[bytes, int]:
    """A file's header after some tensors got another type (`kinds`, by name) and maybe one was added (its name, one of
    the same shape, its type); and where the data starts in the old file.

    `head` holds at least the header, `tensors` are those of its table in order, and `size` is the file's. A tensor that
    grows moves those behind it (`growth`). The new one goes after everything else, at a multiple of the alignment.
    """
    last = _row(tensors[-1].name, tensors[-1].shape, tensors[-1].type)
    end = head.rfind(last) + len(last) + 8  # only padding follows the table, so the last match is in the table
    start = -(-end // alignment) * alignment
    old = b"".join(_entry(t.name, t, t.type, t.offset - start) for t in tensors if t.offset >= start)
    known = struct.unpack_from("<Q", head, 8)[0] == len(tensors) and all(t.offset >= start for t in tensors)
    if not known or not head[:end].endswith(old):
        raise ValueError("the tensors are not the table's")
    growths = {t.offset: growth(t, kinds[t.name], alignment) for t in tensors if t.name in kinds}

    def moved(offset: int) -> int:
        return offset - start + sum(more for place, more in growths.items() if place < offset)

    table = b"".join(_entry(t.name, t, kinds.get(t.name, t.type), moved(t.offset)) for t in tensors)
    if added:
        name, like, kind = added
        table += _entry(name, like, kind, moved(start + -(-(size - start) // alignment) * alignment))
    count = struct.pack("<Q", len(tensors) + bool(added))
    header = head[:8] + count + head[16 : end - len(old)] + table
    return header + bytes(-len(header) % alignment), start


def growth(tensor: Tensor, kind: str, alignment: int) -> int:
    """How many bytes longer a tensor's data becomes in another type: whole alignments, so the rest stays aligned."""
    rows = tensor.elements // tensor.shape[0]
    return -(-(rows * BY_NAME[kind].row_nbytes(tensor.shape[0]) - tensor.nbytes) // alignment) * alignment


def _entry(name: str, tensor: Tensor, kind: str, offset: int) -> bytes:
    """A tensor's row in the table, with its offset."""
    return _row(name, tensor.shape, kind) + struct.pack("<Q", offset)


def _row(name: str, shape: tuple[int, ...], kind: str) -> bytes:
    """A tensor's row in the table, up to its offset."""
    return _string(name) + struct.pack(f"<I{len(shape)}QI", len(shape), *shape, BY_NAME[kind].id)


def _nbytes(tensor: NewTensor) -> int:
    rows = 1
    for size in tensor.shape[1:]:
        rows *= size
    return rows * BY_NAME[tensor.type].row_nbytes(tensor.shape[0])


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value after its type; integers are u32 alone and i32 in arrays, as in the published files."""
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case Sequence():
            return struct.pack("<I", _ARRAY) + _array(value)
        case _:
            raise TypeError(f"a GGUF cannot hold {kind_of(value)}")


def _array(values: Sequence[Any]) -> bytes:
    count = struct.pack("<Q", len(values))
    match values[0]:
        case bool():
            return struct.pack("<I", _BOOL) + count + struct.pack(f"<{len(values)}?", *values)
        case int():
            return struct.pack("<I", _I32) + count + struct.pack(f"<{len(values)}i", *values)
        case float():
            return struct.pack("<I", _F32) + count + struct.pack(f"<{len(values)}f", *values)
        case _:
            return struct.pack("<I", _STRING) + count + b"".join(map(_string, values))
