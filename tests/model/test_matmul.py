"""Products with a matrix: exact ones, and fast ones where the device has subgroups."""

from dataclasses import replace
from typing import Any, Literal

import pytest

from wgemma.gpu.device import Dispatch
from wgemma.gpu.native import NativeDevice
from wgemma.gpu.tape import Tape
from wgemma.model import forms
from wgemma.model.direct import DirectMatmuls
from wgemma.model.forms import (
    EXACT_MIDDLES,
    EXACT_SHARED,
    LARGE,
    QUICK_MIDDLES,
    QUICK_ROUNDING,
    QUICK_SHARED,
    large_from,
    matvec_form,
    middle_form,
    middle_shape,
    rounding_shape,
    tile_shares,
)
from wgemma.model.matmul import Matmuls, Precision, Residual, Result, Rounded
from wgemma.reference import twins
from wgemma.reference.lab import EPS, F32, Lab, framed, relative_error, untouched
from wgemma.reference.twins import Array

ROWS = 3


def error(device: NativeDevice, precision: Precision, rows: int, *, fine: bool = False, room: bool = False) -> float:
    """How far the products of so many rows are off; with `room` for their input in bytes."""
    with Lab(device, rows) as lab:
        matrix, w = lab.weights("Q4_0", 70, 288)
        x, y = lab.normal(rows, 288), lab.out(rows * 70)
        tape = Tape(device, "test")
        rounded = lab.out(rows * 288 * 12 // 32) if room else None
        Matmuls(device, EPS, precision).linear(tape, matrix, rows, lab.put(x), Result(y, fine=fine, rounded=rounded))
        tape.program().replay()
        tape.free()
        return relative_error(lab.read(y), framed(twins.linear(w, x)))


@pytest.mark.parametrize("rows", [20, 40, 70])
def test_fast_products_of_many_rows_have_inputs_of_eight_bits_where_there_is_room_for_them(
    gpu: NativeDevice, rows: int
) -> None:
    assert error(gpu, "exact", rows, room=True) == error(gpu, "fast", rows) <= F32
    assert 100 * F32 < error(gpu, "fast", rows, room=True) < 0.01


def test_fast_products_of_a_few_rows_have_inputs_of_eight_bits_or_sixteen(gpu: NativeDevice) -> None:
    coarse, fine = error(gpu, "fast", 3), error(gpu, "fast", 3, fine=True)
    assert 100 * F32 < coarse < 0.01
    assert 0 < fine < coarse / 100
    assert error(gpu, "exact", 3, fine=True) <= F32


def product(device: NativeDevice, rows: int, then: Literal["", "GEGLU", "PLE"], *, fine: bool = False) -> Array:
    """Fast products of 70 results from the residual stream, with room for everything they may need."""
    with Lab(device, rows) as lab:
        matrix, _ = lab.weights("Q4_0", 70, 288)
        h, o, norms, h_out, x = (lab._filled(lab.normal(n, 288).tobytes()) for n in (rows, rows, 2, rows, rows))
        width = 35 if then == "GEGLU" else 70
        side, y, bare = lab.put(lab.normal(rows, 80)), lab.out(rows * width), lab.out(rows * 70)
        room, parts = lab.out(rows * 288 * 20 // 32), lab.out(8 * rows * 70)
        beside: dict[str, Any] = {"side": side, "side_stride": 80, "side_offset": 5} if then == "PLE" else {}
        result = Result(y, then=then, bare=bare, bytes=room, parts=parts, fine=fine, **beside)
        tape = Tape(device, "test")
        source = Residual(h, o, norms, h_out, x, 0.7, norm=True)
        Matmuls(device, EPS, "fast").linear(tape, matrix, rows, source, result)
        tape.program().replay()
        tape.free()
        return lab.read(y)


@pytest.mark.parametrize("rows", [4, 8, 20, 64])
@pytest.mark.parametrize(("then", "fine"), [("", False), ("", True), ("GEGLU", False), ("PLE", False)])
def test_fast_products_round_alike_for_one_row_and_for_64(
    gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, rows: int, then: Literal["", "GEGLU", "PLE"], fine: bool
) -> None:
    monkeypatch.setattr(Matmuls, "work", (0, 0))  # so that middle computes them
    middle = product(gpu, rows, then, fine=fine)
    monkeypatch.setattr(Matmuls, "middle", (0, 0))
    monkeypatch.setattr(Matmuls, "few", 64)  # so that matvec computes them
    assert relative_error(middle, product(gpu, rows, then, fine=fine)) < 10 * F32


@pytest.mark.parametrize(
    ("what", "rows", "n", "blocks", "tile", "shares"),
    [
        ("gate and up of E2B", 64, 24576, 48, (64, 64), 1),
        ("head of E2B", 8, 262144, 48, (8, 32), 1),
        ("queries of E2B", 64, 2048, 48, (16, 32), 1),
        ("down of E2B, 8 rows", 8, 1536, 384, (8, 16), 6),
        ("down of E2B", 64, 1536, 384, (64, 32), 11),
        ("down of E2B, no room", 64, 1536, 384, (8, 16), 0),
        ("keys of E2B", 8, 256, 48, (8, 16), 1),
    ],
)
def test_narrow_matrices_take_smaller_tiles_or_share_their_sums(
    gpu: NativeDevice, what: str, rows: int, n: int, blocks: int, tile: tuple[int, int], shares: int
) -> None:
    form, found = middle_form(gpu, rows, n, blocks, quick=True, most=32 if shares else 1)
    assert (form["ROWS"], form["COLUMNS"]) == tile, what
    assert found == max(shares, 1), what


@pytest.mark.parametrize(
    ("what", "rows", "n", "made", "kernel"),
    [
        ("little work", 9, 70, False, "matvec"),
        ("more than that", 10, 70, False, "middle"),
        ("no more than what pays if x is made on the way", 10, 70, True, "matvec"),
        ("so much that it pays to make x first", 20, 70, True, "middle"),
        ("fewer rows than are worth it", 3, 700, True, "matvec"),
    ],
)
def test_small_products_are_those_of_each_row(
    gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch, what: str, rows: int, n: int, made: bool, kernel: str
) -> None:
    monkeypatch.setattr(Matmuls, "work", (9 * 70 * 9, 19 * 70 * 9))
    with Lab(gpu, 1) as lab:
        stream, tape = Stream(lab, 288, n), Tape(gpu, "test")
        result = Result(lab.out(rows * n), bytes=lab.out(rows * 288 * 20 // 32))
        source = stream.source if made else lab.out(rows * 288)
        Matmuls(gpu, EPS, "fast").linear(tape, stream.matrix, rows, source, result)
        commands = [command for command in tape.commands if isinstance(command, Dispatch)]
        assert commands[-1].kernel.name == kernel, what
        assert len(commands) == (1 if kernel == "matvec" else 2), what
        tape.free()


def test_gate_and_up_hand_their_result_on_in_the_bytes_that_down_reads(
    gpu: NativeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, tape, matmuls = 20, Tape(gpu, "test"), Matmuls(gpu, EPS, "fast")
    with Lab(gpu, 1) as lab:
        (gate_up, _), (down, _) = lab.weights("Q4_0", 128, 288), lab.weights("Q4_0", 70, 64)
        x, act, room = lab.put(lab.normal(rows, 288)), lab.out(rows * 64), lab.out(rows * 288 * 12 // 32)
        first, last = Result(act, then="GEGLU", bytes=room), Result(lab.out(rows * 70), bytes=room)
        assert not matmuls.hands_on(gate_up, down, rows, x, first, last)  # little work: each row by itself
        monkeypatch.setattr(Matmuls, "work", (0, 0))
        assert not matmuls.hands_on(gate_up, down, rows, x, first, last)  # so few tiles
        monkeypatch.setattr(forms, "ROUNDING_GRID", 1)
        assert matmuls.hands_on(gate_up, down, rows, x, first, last)
        assert not matmuls.hands_on(gate_up, down, rows, x, first, replace(last, fine=True))
        found = []
        for handed in (True, False):
            matmuls.linear(tape, gate_up, rows, x, replace(first, rounds=handed))
            matmuls.linear(tape, down, rows, Rounded(None, act, fine=False) if handed else act, last)
            tape.program().replay()
            found.append(lab.read(last.y)[: rows * 70])
        tape.free()
    assert relative_error(*found) < 10 * F32


@pytest.mark.parametrize("quick", [True, False])
def test_every_tile_of_the_middle_fits_the_smallest_device(floor: NativeDevice, quick: bool) -> None:
    tables, shared = (QUICK_MIDDLES, QUICK_SHARED) if quick else (EXACT_MIDDLES, EXACT_SHARED)
    assert tables.keys() == shared.keys()
    for size, middles in tables.items():
        for middle in (*middles, shared[size]):
            form = middle_shape(floor, middle, quick=quick, fine=quick)
            assert 16 * form["ROOM"] <= floor.limits.workgroup_memory
            assert form["THREADS"] <= floor.limits.invocations
    for middles in QUICK_ROUNDING.values():
        for middle in middles:
            assert 16 * rounding_shape(floor, middle)["ROOM"] <= floor.limits.workgroup_memory


def test_devices_without_features_are_exact_all_the_same(floor: NativeDevice) -> None:
    for rows in (3, 40):
        assert error(floor, "fast", rows, room=True) <= F32


@pytest.mark.parametrize(
    ("n", "rows", "tall"), [(600, 17, 32), (600, 32, 32), (600, 33, 64), (600, 300, 64), (512, 300, 32)]
)
def test_a_tile_is_as_high_as_its_rows_and_results_are_many(gpu: NativeDevice, n: int, rows: int, tall: int) -> None:
    with Lab(gpu, 1) as lab:
        matrix, _ = lab.weights("Q4_0", n, 32)
        tape = Tape(gpu, "test")
        Matmuls(gpu, EPS).linear(tape, matrix, rows, lab.out(rows * 32), Result(lab.out(rows * n)))
        (command,) = tape.commands
        assert isinstance(command, Dispatch)
        assert command.grid == (-(-n // 64), -(-rows // tall), 1)


@pytest.mark.parametrize(
    ("what", "tiles", "blocks", "room", "shares"),
    [
        ("down of E2B, 512 rows", 192, 384, 16, 4),
        ("down of E2B, 20 rows", 24, 384, 16, 8),
        ("down of 31B, 512 rows", 672, 672, 8, 4),
        ("down of 31B, 1120 rows", 1512, 672, 3, 1),
        ("gate and up of E2B, 512 rows", 3072, 48, 8, 1),
        ("keys of E2B, 512 rows", 64, 48, 8, 4),
        ("a per-layer projection of E2B, 512 rows", 192, 8, 8, 1),
        ("four shares, but room for three", 192, 384, 3, 2),
        ("no room", 192, 384, 0, 1),
    ],
)
def test_workgroups_share_a_sum_where_there_are_few_tiles_and_long_rows(
    what: str, tiles: int, blocks: int, room: int, shares: int
) -> None:
    assert tile_shares(tiles, blocks, room) == shares, what


@pytest.mark.parametrize("device", ["gpu", "floor"])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(("rows", "room", "kernels"), [(20, 8, 2), (70, 5, 2), (70, 1, 1)])
def test_sums_in_parts_are_added_up_to_the_same(
    request: pytest.FixtureRequest, device: str, precision: Precision, rows: int, room: int, kernels: int
) -> None:
    adapter: NativeDevice = request.getfixturevalue(device)
    n, stride, offset = 70, 81, 3
    with Lab(adapter, rows) as lab:
        matrix, w = lab.weights("Q4_0", n, 288, 50)  # in two parts itself
        x, y, tape = lab.normal(rows, 288), lab.out(rows * stride), Tape(adapter, "test")
        matmuls = Matmuls(adapter, EPS, precision)
        matmuls.share = 1
        rounded = lab.out(rows * 288 * 12 // 32) if precision == "fast" else None
        parts = lab.device.buffer(4 * room * rows * n, "parts")
        matmuls.linear(tape, matrix, rows, lab.put(x), Result(y, stride, offset, rounded=rounded, parts=parts))
        names = [command.kernel.name for command in tape.commands if isinstance(command, Dispatch)]
        assert len(set(names) - {"to_bytes"}) == kernels
        tape.program().replay()
        tape.free()
        adapter.free(parts)
        expected = untouched(rows, stride)
        quick = precision == "fast" and device == "gpu"
        expected[:, offset : offset + n] = twins.linear(w, twins.rounded(x) if quick else x)
        assert relative_error(lab.read(y), framed(expected)) <= F32


def test_a_software_adapter_shares_no_sums(gpu: NativeDevice) -> None:
    with Lab(gpu, 1) as lab:
        matrix, _ = lab.weights("Q4_0", 70, 2304)
        tape, x, y = Tape(gpu, "test"), lab.out(20 * 2304), lab.out(20 * 70)
        DirectMatmuls(gpu, EPS).linear(tape, matrix, 20, x, Result(y, parts=lab.out(8 * 20 * 70)))
        assert [command.kernel.name for command in tape.commands if isinstance(command, Dispatch)] == ["direct"]


class Stream:
    """A few rows of the residual stream on their way into a matrix."""

    def __init__(self, lab: Lab, columns: int, n: int) -> None:
        self.matrix, w = lab.weights("Q4_0", n, columns)
        h, o, norms = lab.normal(ROWS, columns), lab.normal(ROWS, columns), lab.norms(2, columns)
        self.h_out, self.y = lab.out(ROWS * columns), lab.out(ROWS * n)
        given = (lab.put(h), lab.put(o), lab.device.buffer(8 * columns, "norms"), self.h_out, lab.out(ROWS * columns))
        lab.device.write(given[2], 0, norms.astype("<f4").tobytes())
        self.source = Residual(*given, scale=0.7, norm=True)
        self.v, x = twins.residual(h, o, norms, 0.7, EPS, norm=True)
        self.expected = twins.linear(w, x)


@pytest.mark.parametrize("device", ["gpu", "floor"])
@pytest.mark.parametrize(
    ("columns", "large", "kernels"),
    [
        (2048, LARGE, ["matvec"]),
        (2080, LARGE, ["matvec"]),
        (2080, 0, ["matvec"]),
        (4128, LARGE, ["norm", "matvec"]),
        (4128, 0, ["norm", "matvec"]),
    ],
)
def test_long_rows_are_made_once(
    request: pytest.FixtureRequest, device: str, columns: int, large: int, kernels: list[str]
) -> None:
    adapter: NativeDevice = request.getfixturevalue(device)
    with Lab(adapter, columns) as lab:
        stream, tape = Stream(lab, columns, 70), Tape(adapter, "test")
        matmuls = Matmuls(adapter, EPS)
        matmuls.large = large
        matmuls.linear(tape, stream.matrix, ROWS, stream.source, Result(stream.y))
        assert [command.kernel.name for command in tape.commands if isinstance(command, Dispatch)] == kernels
        tape.program().replay()
        tape.free()
        assert relative_error(lab.read(stream.y), framed(stream.expected)) <= F32
        assert relative_error(lab.read(stream.h_out), framed(stream.v)) <= F32
        adapter.free(stream.source.norms)


def test_a_large_matrix_has_two_blocks_of_a_row_in_flight(gpu: NativeDevice) -> None:
    with Lab(gpu, 1) as lab:
        matrix, _ = lab.weights("Q4_K", 130, 2304)
        once, twice = (matvec_form(gpu, matrix, large=large) for large in (matrix.rows * matrix.blocks + 1, 0))
        assert (once["DEPTH"], twice["DEPTH"]) == (1, 2)
        assert once["LANES"] == 2 * twice["LANES"]
        few = matvec_form(gpu, matrix, rows=1, large=matrix.rows * matrix.blocks)
        assert few["DEPTH"] == 1  # of experts only those count that are asked


def test_a_kernel_that_makes_its_input_is_longer_only_for_larger_matrices() -> None:
    e4b_gate_up = 20480 * 2560 // 32
    assert large_from(makes=False) <= e4b_gate_up < large_from(makes=True)


@pytest.mark.parametrize(("kind", "kernel"), [("F32", "low_project"), ("F16", "matvec")])
def test_a_row_of_a_thin_matrix_has_a_workgroup_if_it_is_f32(gpu: NativeDevice, kind: str, kernel: str) -> None:
    with Lab(gpu, 2) as lab:
        matrix, w = lab.weights(kind, 9, 288)
        x, y, tape = lab.normal(ROWS, 288), lab.out(ROWS * 9), Tape(gpu, "test")
        Matmuls(gpu, EPS).thin(tape, matrix, ROWS, lab.put(x), y)
        assert [command.kernel.name for command in tape.commands if isinstance(command, Dispatch)] == [kernel]
        tape.program().replay()
        tape.free()
        assert relative_error(lab.read(y), framed(twins.linear(w, x))) <= F32
