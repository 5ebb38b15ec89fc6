"""Products with a matrix: exact ones, and fast ones of a few rows where the device has subgroups."""

import pytest

from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Dispatch, Tape
from wgemma.model.matmul import Matmuls, Precision, Result
from wgemma.reference import twins
from wgemma.reference.lab import EPS, F32, Lab, framed, relative_error


def error(device: NativeDevice, precision: Precision, rows: int, *, fine: bool = False) -> float:
    """How far the products of so many rows are off."""
    with Lab(device, rows) as lab:
        matrix, w = lab.weights("Q4_0", 70, 288)
        x, y = lab.normal(rows, 288), lab.out(rows * 70)
        tape = Tape(device, "test")
        Matmuls(device, EPS, precision).linear(tape, matrix, rows, lab.put(x), Result(y, fine=fine))
        tape.program().replay()
        tape.free()
        return relative_error(lab.read(y), framed(twins.linear(w, x)))


@pytest.mark.parametrize("rows", [20, 40, 70])
def test_fast_products_of_many_rows_are_the_exact_ones(gpu: NativeDevice, rows: int) -> None:
    assert error(gpu, "exact", rows) == error(gpu, "fast", rows) <= F32


def test_fast_products_of_a_few_rows_have_inputs_of_eight_bits_or_sixteen(gpu: NativeDevice) -> None:
    coarse, fine = error(gpu, "fast", 3), error(gpu, "fast", 3, fine=True)
    assert 100 * F32 < coarse < 0.01
    assert 0 < fine < coarse / 100
    assert error(gpu, "exact", 3, fine=True) <= F32


def test_devices_without_features_are_exact_all_the_same(floor: NativeDevice) -> None:
    for rows in (3, 40):
        assert error(floor, "fast", rows) <= F32


@pytest.mark.parametrize(
    ("n", "rows", "tall"), [(600, 9, 32), (600, 32, 32), (600, 33, 64), (600, 300, 64), (512, 300, 32)]
)
def test_a_tile_is_as_high_as_its_rows_and_results_are_many(gpu: NativeDevice, n: int, rows: int, tall: int) -> None:
    with Lab(gpu, 1) as lab:
        matrix, _ = lab.weights("Q4_0", n, 32)
        tape = Tape(gpu, "test")
        Matmuls(gpu, EPS).linear(tape, matrix, rows, lab.out(rows * 32), Result(lab.out(rows * n)))
        (command,) = tape.commands
        assert isinstance(command, Dispatch)
        assert command.grid == (-(-n // 64), -(-rows // tall), 1)
