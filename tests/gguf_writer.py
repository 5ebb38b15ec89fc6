"""Writes GGUF bytes for tests: small, exact, and with every field open to mischief."""

import struct
from typing import Any

from wgemma.files.quants import BY_NAME

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(item: Any) -> bytes:
    """A value with its type in front: str, bool, int (u32), float (f32), or a list of one of these."""
    if isinstance(item, bool):
        return struct.pack("<I?", BOOL, item)
    if isinstance(item, int):
        return struct.pack("<II", U32, item)
    if isinstance(item, float):
        return struct.pack("<If", F32, item)
    if isinstance(item, str):
        return struct.pack("<I", STRING) + string(item)
    kind, bodies = U32, [value(element)[4:] for element in item]
    if item:
        kind = struct.unpack("<I", value(item[0])[:4])[0]
    return struct.pack("<IIQ", ARRAY, kind, len(item)) + b"".join(bodies)


def tensor_nbytes(kind: str, shape: tuple[int, ...]) -> int:
    rows = 1
    for size in shape[1:]:
        rows *= size
    return BY_NAME[kind].row_nbytes(shape[0]) * rows


def write_gguf(
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, tuple[str, tuple[int, ...], bytes | None]] | None = None,
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file; a tensor is (type, shape in ggml order, bytes or None for zeros)."""
    metadata, tensors = metadata or {}, tensors or {}
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        data += bytes(-len(data) % alignment)
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, BY_NAME[kind].id, len(data))
        data += bytes(tensor_nbytes(kind, shape)) if raw is None else raw
    return head + bytes(-len(head) % alignment) + data
