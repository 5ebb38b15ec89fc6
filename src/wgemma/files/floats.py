"""Numbers in files ⇄ float32: F32, F16, BF16 and Q8_0, with the standard library only.

For matrices as small as an adapter's, where launching a kernel does not pay. All four formats fit float32 exactly.
"""

import struct
import sys
from array import array
from collections.abc import Callable
from math import isfinite

from wgemma.files.sources import Buffer

STEP = 1 << 16  # numbers held as Python objects at a time


def floats(data: Buffer, kind: str) -> "array[float]":
    """The numbers in `data`, stored as `kind`."""
    return _READERS[kind](data)


def float_bytes(values: "array[float]") -> memoryview:
    """The numbers as little-endian F32."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return memoryview(values).cast("B")


def all_finite(values: "array[float]") -> bool:
    """Whether no number is NaN or Inf: exactly then their sum in double precision is finite."""
    return isfinite(sum(values))


def transposed(values: "array[float]", columns: int) -> "array[float]":
    """[rows, columns] → [columns, rows], looping over whichever is fewer."""
    rows, turned = len(values) // columns, array("f", bytes(4 * len(values)))
    if columns < rows:
        for column in range(columns):
            turned[column * rows : (column + 1) * rows] = values[column::columns]
    else:
        for row in range(rows):
            turned[row::rows] = values[row * columns : (row + 1) * columns]
    return turned


def scaled(values: "array[float]", factor: float) -> "array[float]":
    return values if factor == 1 else array("f", [factor * value for value in values])


def _f32(data: Buffer) -> "array[float]":
    values: array[float] = array("f")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _f16(data: Buffer) -> "array[float]":
    values: array[float] = array("f")
    for start in range(0, len(data), 2 * STEP):
        piece = data[start : start + 2 * STEP]
        values.extend(array("f", struct.unpack(f"<{len(piece) // 2}e", piece)))
    return values


def _bf16(data: Buffer) -> "array[float]":
    """The upper half of each float32."""
    halves, words = bytes(data), bytearray(2 * len(data))
    words[2::4], words[3::4] = halves[::2], halves[1::2]
    return _f32(bytes(words))


def _q8_0(data: Buffer) -> "array[float]":
    """x = d · q, blocks of d:f16 and q:i8[32]."""
    values: array[float] = array("f")
    for d, *codes in struct.iter_unpack("<e32b", data):
        values.extend([d * code for code in codes])
    return values


_READERS: "dict[str, Callable[[Buffer], array[float]]]" = {"F32": _f32, "F16": _f16, "BF16": _bf16, "Q8_0": _q8_0}
