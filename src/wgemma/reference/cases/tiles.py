"""Cases of the matmuls for many rows: tile, tile_bytes and the rounding of its input, direct, and add_up."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wgemma.gpu.device import Buffer
from wgemma.model.forms import direct_form, direct_grid, tile_form
from wgemma.model.planes import PLANES
from wgemma.reference import twins
from wgemma.reference.lab import F32, GUARD, Case, Lab, Outcome, case, clear_of_ties, framed, takes, untouched, widths
from wgemma.reference.twins import Array

OFFSET = 3  # of the results within a row of y


def cases() -> Iterator[Case]:
    yield from _tile_cases()
    yield from _bytes_cases()
    yield from _direct_cases()


def _tile_cases() -> Iterator[Case]:
    """What follows the product, every tile height, and every type with the tallest."""
    yield case(_tile, True, kind="F32", rows=64, n=70, columns=96, scaled=True)
    for rows in (9, 70):
        yield case(_tile, rows == 9, kind="F32", rows=rows, n=70, columns=96, scaled=True, own=True)
    for cap in (3.0, 0.0):
        yield case(_tile, cap > 0, kind="Q8_0", rows=33, n=65, columns=96, cap=cap)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_tile, extreme == "nan", kind="Q8_0", rows=33, n=65, columns=96, extreme=extreme, cap=3.0)
    for rows, n in ((1, 64), (2, 63), (3, 128), (7, 129), (8, 1), (31, 33), (32, 70)):
        yield case(_tile, rows == 32, kind="Q4_0", rows=rows, n=n, columns=96)
    for rows, n in ((33, 130), (64, 64), (65, 1), (128, 1), (130, 65)):
        yield case(_tile, rows == 130, kind="Q4_0", rows=rows, n=n, columns=96)
    for kind in PLANES:
        narrow, middling, wide = widths(kind)
        yield case(_tile, True, kind=kind, rows=70, n=130, columns=middling)
        yield case(_tile, False, kind=kind, rows=70, n=7, columns=wide)
        yield case(_tile, False, kind=kind, rows=70, n=130, columns=narrow, most=50)
    yield case(_tile, False, kind="Q4_K", rows=9, n=65, columns=2304)
    for rows, shares in ((70, 4), (9, 8)):  # of nine blocks
        yield case(_tile, shares == 4, kind="Q4_0", rows=rows, n=70, columns=288, most=50, shares=shares)
    for rows, n, shares in ((3, 70, 4), (2, 300, 2)):
        yield case(_add_up, True, rows=rows, n=n, shares=shares)


@dataclass(frozen=True, slots=True)
class Tile:
    kind: str
    rows: int
    n: int
    columns: int
    most: int = 0
    cap: float | None = None
    extreme: str = ""
    by: str = "tile"
    scaled: bool = False
    own: bool = False  # every row has its own scales
    shares: int = 1


@takes(Tile)
def _tile(lab: Lab, asked: Tile) -> Outcome:
    rows, n, cap, shares = asked.rows, asked.n, asked.cap, asked.shares
    matrix, w = lab.weights(asked.kind, n, asked.columns, asked.most)
    stride, x = n + 5, lab.activations(rows, asked.columns, extreme=asked.extreme)
    given, y = lab.put(x), lab.out(shares * rows * stride)
    side, scales, step = lab.scales(rows, n, asked.own)
    direct = asked.by == "direct"
    form = direct_form(lab.device) if direct else tile_form(rows, n, narrow=0)
    constants = {"TYPE": matrix.planes.reader, "SOFTCAP": cap is not None, "SCALE": asked.scaled, **form}
    for part in matrix.parts:
        params: dict[str, float] = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
        params |= {"y_stride": stride, "y_offset": OFFSET + part.first, **({} if cap is None else {"cap": cap})}
        params |= {"side_stride": step} if asked.scaled else {}
        bindings = {**part.bindings(), "x": given, "y": y, "side": scales}
        grid = direct_grid(part.rows, rows, form) if direct else [-(-part.rows // 64), -(-rows // form["ROWS"]), shares]
        lab.run(asked.by, grid, bindings, params, constants)
    expected = untouched(shares, rows, stride)
    result = twins.shared(w, x, shares) * (twins.wide(side) if asked.scaled else 1.0)
    expected[:, :, OFFSET : OFFSET + n] = twins.capped(result, cap or 0.0)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _add_up(lab: Lab, rows: int, n: int, shares: int) -> Outcome:
    parts, stride = lab.normal(shares, rows, n), n + 5
    y = lab.out(rows * stride)
    params = {"n": n, "rows": rows, "shares": shares, "y_stride": stride, "y_offset": OFFSET}
    lab.run("add_up", [-(-n // 256), rows], {"parts": lab.put(parts), "y": y}, params)
    expected = untouched(rows, stride)
    expected[:, OFFSET : OFFSET + n] = twins.wide(parts).sum(0)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _bytes_cases() -> Iterator[Case]:
    """Both tile heights, and every quantised type."""
    for rows, columns in ((3, 96), (70, 2304), (1, 32)):
        yield case(_to_bytes, rows == 3, rows=rows, columns=columns)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_to_bytes, extreme == "zeros", rows=2, columns=96, extreme=extreme)
        yield case(_to_bytes, extreme == "huge", rows=2, columns=96, extreme=extreme, fine=True)
    yield case(_to_bytes, True, rows=3, columns=96, fine=True)
    for kind in (kind for kind, planes in PLANES.items() if planes.quick):
        narrow, middling, wide = widths(kind)
        yield case(_tile_bytes, True, kind=kind, rows=70, n=130, columns=middling)
        yield case(_tile_bytes, False, kind=kind, rows=9, n=7, columns=wide)
        yield case(_tile_bytes, False, kind=kind, rows=33, n=65, columns=narrow, most=50)
    yield case(_tile_bytes, False, kind="Q8_0", rows=3, n=65, columns=96, extreme="nan")
    for rows, shares in ((70, 4), (9, 8)):
        yield case(_tile_bytes, shares == 4, kind="Q4_0", rows=rows, n=70, columns=288, most=50, shares=shares)


def _to_bytes(lab: Lab, rows: int, columns: int, extreme: str = "", fine: bool = False) -> Outcome:
    """Read back as numbers, with the sums stored beside them."""
    x, blocks = lab.activations(rows, columns, extreme=extreme), rows * columns // 32
    x = x if extreme or fine else clear_of_ties(x)
    y = lab.out(byte_words(fine=fine) * blocks)
    lab.run("to_bytes", [-(-blocks // 64)], {"x": lab.put(x), "bytes": y}, {"blocks": blocks}, {"FINE": fine})
    return Outcome(*rounded_outputs(lab, y, x, fine=fine), F32)


def byte_words(*, fine: bool) -> int:
    """Words of a block in bytes."""
    return 20 if fine else 12


def rounded_outputs(lab: Lab, y: Buffer, x: Array, *, fine: bool) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """What to_bytes left in y, and what it should make of x: the numbers, their sums, and nothing after them."""
    blocks, each = x.size // 32, byte_words(fine=fine)
    read = lab.read(y, "<u4")
    words = read[: each * blocks].astype("<u4").reshape(blocks, each)
    tails = np.ascontiguousarray(words[:, 8:11]).view("<f4").astype(np.float64)
    codes = np.ascontiguousarray(words[:, :8]).view("i1").astype(np.float64)
    if fine:
        codes = 256 * codes + np.ascontiguousarray(words[:, 12:]).view("i1")
    expected = twins.rounded(x, 32639 if fine else 127).reshape(blocks, 32)
    sums = expected.reshape(blocks, 2, 16).sum(-1)
    return (codes * tails[:, :1], tails[:, 1:], read[each * blocks :]), (expected, sums, untouched(GUARD))


@dataclass(frozen=True, slots=True)
class TileBytes:
    kind: str
    rows: int
    n: int
    columns: int
    most: int = 0
    extreme: str = ""
    shares: int = 1


@takes(TileBytes)
def _tile_bytes(lab: Lab, asked: TileBytes) -> Outcome:
    rows, n, columns, shares = asked.rows, asked.n, asked.columns, asked.shares
    matrix, w = lab.weights(asked.kind, n, columns, asked.most)
    stride, x, blocks = n + 5, lab.activations(rows, columns, extreme=asked.extreme), rows * columns // 32
    x = x if asked.extreme else clear_of_ties(x)
    y, bytes_ = lab.out(shares * rows * stride), lab.out(12 * blocks)
    lab.run("to_bytes", [-(-blocks // 64)], {"x": lab.put(x), "bytes": bytes_}, {"blocks": blocks})
    form = tile_form(rows, n, narrow=0) | {"TYPE": matrix.planes.reader, "QUICK": True}
    for part in matrix.parts:
        params = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
        params |= {"y_stride": stride, "y_offset": OFFSET + part.first}
        bindings = {**part.bindings(), "bytes": bytes_, "y": y}
        lab.run("tile_bytes", [-(-part.rows // 64), -(-rows // form["ROWS"]), shares], bindings, params, form)
    expected = untouched(shares, rows, stride)
    expected[:, :, OFFSET : OFFSET + n] = twins.shared(w, twins.rounded(x), shares)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _direct_cases() -> Iterator[Case]:
    """The same for direct.wgsl, with few rows and many."""
    for kind in PLANES:
        _, middling, wide = widths(kind)
        for rows, n in ((1, 7), (32, 64), (39, 130)):
            yield case(_tile, rows == 39, "direct", kind=kind, rows=rows, n=n, columns=middling, by="direct")
        yield case(_tile, False, "direct", kind=kind, rows=3, n=65, columns=wide, most=50, by="direct")
    yield case(_tile, True, "direct", kind="Q8_0", rows=5, n=65, columns=96, cap=3.0, by="direct")
    yield case(_tile, True, "direct", kind="F32", rows=5, n=70, columns=96, scaled=True, by="direct")
    yield case(_tile, True, "direct", kind="F32", rows=35, n=7, columns=96, scaled=True, own=True, by="direct")
    for extreme in ("zeros", "huge", "nan"):
        options = {"extreme": extreme, "by": "direct"}
        yield case(_tile, extreme == "nan", "direct", kind="Q8_0", rows=5, n=65, columns=96, cap=3.0, **options)
