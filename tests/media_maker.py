"""Builds pictures and sounds byte by byte, good ones and such as no honest program would write."""

import struct
import zlib
from collections.abc import Sequence

GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int,
    height: int,
    rows: Sequence[bytes],
    *,
    depth: int = 8,
    colour: int = 0,
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> bytes:
    """`colour` is PNG's: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA. `extra` chunks come before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = [(b"IHDR", header), *extra, (b"IDAT", packed), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def riff_chunk(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    return kind + struct.pack("<I", len(body) if size is None else size) + body + b"\0" * (len(body) % 2)


def wav_format(
    coding: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16, *, block: int | None = None
) -> bytes:
    block = channels * ((bits + 7) // 8) if block is None else block
    return struct.pack("<HHIIHH", coding, channels, rate, rate * block & 0xFFFFFFFF, block, bits)


def extensible(coding: int, channels: int, rate: int, bits: int, tail: bytes = GUID_TAIL) -> bytes:
    guid = struct.pack("<H", coding) + tail
    return wav_format(0xFFFE, channels, rate, bits) + struct.pack("<HHI", 22, bits, 0) + guid


def wav(
    body: bytes,
    form: bytes | None = None,
    *,
    size: int | None = None,
    riff_size: int | None = None,
    before: bytes = b"",
    after: bytes = b"",
    kind: bytes = b"RIFF",
) -> bytes:
    """A WAV of the given samples; `size` and `riff_size` are what the header says instead of the truth."""
    form = wav_format() if form is None else form
    chunks = riff_chunk(b"fmt ", form) + before + riff_chunk(b"data", body, size) + after
    return kind + struct.pack("<I", 4 + len(chunks) if riff_size is None else riff_size) + b"WAVE" + chunks


def mended(data: bytes) -> bytes:
    """A PNG with the checksums of its chunks made right again, so that a mutation is not found out by them."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        if at + 12 + length > len(data):
            break
        out += png_chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length])
        at += 12 + length
    return bytes(out + data[at:])
