"""Adapter formats convert to float32 as in NumPy and the `gguf` package."""

import struct
from array import array

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from wgemma.files.floats import STEP, all_finite, float_bytes, floats, scaled, transposed

VALUES = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_every_format_is_read_exactly(kind: str) -> None:
    there = gguf.GGMLQuantizationType[kind]
    data = quantize(VALUES, there)
    expected = dequantize(data, there).astype(np.float32)
    for view in (data.tobytes(), memoryview(data.tobytes())):
        assert floats(view, kind).tobytes() == expected.tobytes()


def test_halves_are_read_in_steps_without_a_seam() -> None:
    halves = np.random.default_rng(2).standard_normal(2 * STEP + 5).astype(np.float16)
    assert floats(halves.tobytes(), "F16").tobytes() == halves.astype(np.float32).tobytes()


def test_bytes_are_those_of_f32() -> None:
    values = array("f", [1.5, -2.0])
    assert bytes(float_bytes(values)) == struct.pack("<2f", *values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_number_that_is_none_is_found(bad: float) -> None:
    values = array("f", [3e38] * 100)
    assert all_finite(values)
    assert not all_finite(values + array("f", [bad]))
    assert not all_finite(array("f", [float("inf"), bad]))


@pytest.mark.parametrize("shape", [(2, 7), (7, 2), (1, 5), (5, 1)])
def test_a_matrix_is_turned(shape: tuple[int, int]) -> None:
    matrix = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    turned = transposed(array("f", matrix.tobytes()), shape[1])
    assert turned.tobytes() == matrix.T.tobytes()


def test_a_factor_of_one_changes_nothing() -> None:
    values = array("f", [1, 2])
    assert scaled(values, 1.0) is values
    assert list(scaled(values, 0.5)) == [0.5, 1]
