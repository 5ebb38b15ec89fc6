"""Cases of the matmuls: matvec with all it does before and after the product, with experts too, tile, and direct."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model.matmul import quads
from wgemma.model.planes import PLANES
from wgemma.model.weights import Matrix
from wgemma.reference import twins
from wgemma.reference.lab import EPS, F32, THREADS, Case, Lab, Outcome, case, framed, untouched, widths
from wgemma.reference.twins import Array

OFFSET = 3  # of the results in a row of y
SIDE_OFFSET = 4
TALL = {"tile": 32, "direct": 4}  # rows of x that are done together


def cases() -> Iterator[Case]:
    yield from _matvec_cases()
    yield from _mode_cases()
    yield from _expert_cases()
    yield from _tile_cases()
    yield from _direct_cases()


def _matvec_cases() -> Iterator[Case]:
    """Every type with few and with many lanes; K of one block, and of more than a slice."""
    for lanes in (4, 16):
        for kind in ("Q4_K", "Q6_K", "F16"):
            yield case(_matvec, lanes == 4, kind=kind, rows=2, n=67, columns=768, lanes=lanes, source="norm")
    for kind in PLANES:
        narrow, middling, wide = widths(kind)
        for rows, n in ((1, 33), (2, 7), (3, 1), (7, 64), (8, 130)):
            yield case(_matvec, rows == 2, kind=kind, rows=rows, n=n, columns=middling, lanes=8)
        yield case(_matvec, False, kind=kind, rows=2, n=33, columns=narrow, lanes=8, most=7)
        yield case(_matvec, False, kind=kind, rows=3, n=33, columns=wide, lanes=32)
    for extreme in ("zeros", "huge", "nan"):
        for lanes in (8, 32):
            yield case(_matvec, False, kind="Q8_0", rows=3, n=33, columns=288, lanes=lanes, extreme=extreme)


def _mode_cases() -> Iterator[Case]:
    """What matvec does before and after the product."""
    table: list[tuple[bool, str, int, int, int, dict[str, Any]]] = [
        (True, "Q4_0", 2, 33, 2112, {"source": "norm"}),
        (True, "Q8_0", 3, 33, 288, {"source": "sum"}),
        (True, "Q4_0", 8, 130, 288, {"mode": "GEGLU"}),
        (True, "Q8_0", 2, 33, 96, {"mode": "PLE"}),
        (True, "Q4_K", 1, 130, 256, {"mode": "SOFTCAP"}),
        (True, "Q6_K", 7, 33, 768, {"mode": "SOFTCAP", "source": "norm", "select": True}),
        (False, "Q4_K", 7, 64, 2304, {"mode": "GEGLU", "source": "norm", "most": 22, "lanes": 32}),
        (False, "F16", 8, 7, 32, {"mode": "PLE", "source": "sum", "most": 3}),
        (False, "Q5_0", 8, 64, 1056, {"mode": "SOFTCAP", "source": "norm", "most": 31, "lanes": 32}),
        (False, "Q6_K", 1, 7, 256, {"mode": "SOFTCAP", "source": "norm", "select": True, "cap": 0.0}),
        (False, "Q8_0", 3, 2, 96, {"mode": "GEGLU", "source": "norm"}),
    ]
    for quick, kind, rows, n, columns, options in table:
        yield case(_matvec, quick, kind=kind, rows=rows, n=n, columns=columns, **{"lanes": 8, **options})
    for extreme in ("zeros", "huge", "nan"):
        for mode, source in (("GEGLU", "norm"), ("PLE", "sum"), ("SOFTCAP", "norm")):
            options = {"mode": mode, "source": source, "extreme": extreme}
            yield case(_matvec, False, kind="Q8_0", rows=3, n=34, columns=96, lanes=8, **options)


def _shared_out(lab: Lab, matrix: Matrix, lanes: int) -> dict[str, Any]:
    """matvec.wgsl's constants; few lanes fit any subgroup, so that both ways of adding up are tried everywhere."""
    wide, held = lanes <= lab.device.subgroup_size, quads(matrix.columns)
    constants = {"TYPE": matrix.planes.reader, "LANES": lanes, "SLICE": 64, "WIDE": wide, "QUADS": held}
    return constants | {"THREADS": THREADS}


def _fewer(threads: int) -> int:
    """Half the workgroups the rows would fill, so that each must go on to further rows."""
    return max(1, -(-threads // (2 * THREADS)) // 2)


def _matvec(
    lab: Lab,
    kind: str,
    rows: int,
    n: int,
    columns: int,
    lanes: int,
    mode: str = "",
    source: str = "",
    select: bool = False,
    most: int = 0,
    extreme: str = "",
    cap: float = 3.0,
) -> Outcome:
    """`source`: x itself, or the residual stream's norm or sum; `select` takes its rows in another order."""
    matrix, w = lab.weights(kind, n, columns, most)
    width = n // 2 if mode == "GEGLU" else n
    stride, side_stride = width + 5, n + 9
    scale, picked = 0.7, [rows - 1, 0] if select else list(range(rows))
    side, y = lab.normal(rows, side_stride), lab.out(len(picked) * stride)
    bindings: dict[str, Binding] = {"side": lab.put(side), "picked": lab.put(np.array(picked), "<u4"), "y": y}
    x, v = lab.activations(rows, columns, extreme=extreme), untouched(rows, columns)
    h_out = lab.out(x.size)
    if source:
        o, norms = lab.activations(rows, columns, extreme=extreme), lab.norms(2, columns)
        bindings |= {"h": lab.put(x), "o": lab.put(o), "norms": lab.put(norms), "h_out": h_out}
        sums, x = twins.residual(x, o, norms, scale, EPS, norm=source == "norm")
        v[picked] = sums[picked]
    else:
        bindings["x"] = lab.put(x)
    constants = _shared_out(lab, matrix, lanes) | {"SELECT": select}
    constants |= {"RESIDUAL": bool(source), "NORM": source == "norm"} | ({mode: True} if mode else {})
    for part in matrix.parts:
        first = part.first // 2 if mode == "GEGLU" else part.first
        params = (
            matrix.blocks,
            part.rows,
            stride,
            OFFSET + first,
            scale,
            EPS,
            cap,
            side_stride,
            SIDE_OFFSET + first,
            1,
            0,
            0,
        )
        grid = [_fewer(part.rows * lanes), len(picked)]
        lab.run("matvec", grid, {**part.bindings(), **bindings}, params, constants)
    result = twins.linear(w, x[picked])
    expected = untouched(len(picked), stride)
    expected[:, OFFSET : OFFSET + width] = _finished(result, mode, side[:, SIDE_OFFSET : SIDE_OFFSET + n], cap)
    return Outcome((lab.read(y), lab.read(h_out)), (framed(expected), framed(v)), F32)


def _finished(y: Array, mode: str, side: Array, cap: float) -> Array:
    if mode == "GEGLU":
        return twins.geglu(y)
    if mode == "PLE":
        return twins.gated(y, side)
    return twins.capped(y, cap) if mode == "SOFTCAP" else y


def _expert_cases() -> Iterator[Case]:
    for kind in PLANES:
        narrow, middling, _ = widths(kind)
        yield case(_experts, True, "matvec", kind=kind, rows=3, n=10, columns=middling, geglu=True)
        yield case(_experts, False, "matvec", kind=kind, rows=7, n=33, columns=narrow, weighted=True)
    yield case(_experts, False, "matvec", kind="Q8_0", rows=2, n=64, columns=1056, lanes=32)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_experts, False, "matvec", kind="Q8_0", rows=3, n=10, columns=288, geglu=True, extreme=extreme)


def _experts(
    lab: Lab,
    kind: str,
    rows: int,
    n: int,
    columns: int,
    geglu: bool = False,
    weighted: bool = False,
    lanes: int = 8,
    extreme: str = "",
    by: str = "matvec",
) -> Outcome:
    """Five experts in parts of two, three slots a row."""
    count, slots, together = 5, 3, 2
    matrix, w = lab.weights(kind, count * n, columns, together * n)
    chosen = np.stack([lab.rng.permutation(count)[:slots] for _ in range(rows)])
    weights = lab.rng.uniform(0.1, 1, (rows, slots)).astype(np.float32)
    x = lab.activations(rows, *((slots,) if weighted else ()), columns, extreme=extreme)
    width = n // 2 if geglu else n
    y = lab.out(rows * slots * width)
    bindings: dict[str, Binding] = {"x": lab.put(x), "chosen": lab.put(chosen, "<u4"), "weights": lab.put(weights)}
    constants = _shared_out(lab, matrix, lanes) | {"EXPERTS": True}
    constants |= {"GEGLU": geglu, "WEIGHTED": weighted}
    for part in matrix.parts:
        where = (slots, part.first // n, part.rows // n)
        direct = by == "direct"
        before = (matrix.blocks, n, rows, 0, 0) if direct else (matrix.blocks, n, 0, 0, 1.0, EPS, 0.0, 0, 0)
        grid = [-(-width // 64) if direct else _fewer(n * lanes), rows, slots]
        lab.run(by, grid, {**part.bindings(), **bindings, "y": y}, (*before, *where), constants)
    result = twins.experts(w.reshape(count, n, columns), x, chosen, weights if weighted else None)
    return Outcome((lab.read(y),), (framed(twins.geglu(result) if geglu else result),), F32)


def _tile_cases() -> Iterator[Case]:
    for kind in PLANES:
        narrow, middling, wide = widths(kind)
        for rows, n in ((9, 7), (31, 33), (32, 64), (33, 130), (64, 1), (70, 130)):
            yield case(_tile, rows == 33, kind=kind, rows=rows, n=n, columns=middling)
        yield case(_tile, False, kind=kind, rows=33, n=65, columns=wide)
        yield case(_tile, False, kind=kind, rows=9, n=130, columns=narrow, most=50)
    for rows, n in ((1, 64), (2, 63), (3, 128), (7, 129), (8, 1)):
        yield case(_tile, False, kind="Q4_0", rows=rows, n=n, columns=96)
    for cap in (3.0, 0.0):
        yield case(_tile, cap > 0, kind="Q8_0", rows=33, n=65, columns=96, cap=cap)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_tile, extreme == "nan", kind="Q8_0", rows=33, n=65, columns=96, extreme=extreme, cap=3.0)


def _tile(
    lab: Lab,
    kind: str,
    rows: int,
    n: int,
    columns: int,
    most: int = 0,
    cap: float | None = None,
    extreme: str = "",
    by: str = "tile",
) -> Outcome:
    matrix, w = lab.weights(kind, n, columns, most)
    stride, x = n + 5, lab.activations(rows, columns, extreme=extreme)
    given, y = lab.put(x), lab.out(rows * stride)
    constants = {"TYPE": matrix.planes.reader, "SOFTCAP": cap is not None}
    for part in matrix.parts:
        params = (matrix.blocks, part.rows, rows, stride, OFFSET + part.first, cap or 0.0)
        bindings = {**part.bindings(), "x": given, "y": y}
        lab.run(by, [-(-part.rows // 64), -(-rows // TALL[by])], bindings, params, constants)
    expected = untouched(rows, stride)
    expected[:, OFFSET : OFFSET + n] = twins.capped(twins.linear(w, x), cap or 0.0)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _direct_cases() -> Iterator[Case]:
    for kind in PLANES:
        narrow, middling, wide = widths(kind)
        for rows, n in ((1, 7), (4, 64), (6, 130)):
            yield case(_tile, rows == 6, "direct", kind=kind, rows=rows, n=n, columns=middling, by="direct")
        yield case(_tile, False, "direct", kind=kind, rows=3, n=65, columns=wide, most=50, by="direct")
        options = {"geglu": True, "by": "direct"}
        yield case(_experts, kind == "Q5_0", "direct", kind=kind, rows=3, n=10, columns=middling, **options)
        options = {"weighted": True, "by": "direct"}
        yield case(_experts, kind == "Q8_0", "direct", kind=kind, rows=7, n=70, columns=narrow, **options)
    yield case(_tile, True, "direct", kind="Q8_0", rows=5, n=65, columns=96, cap=3.0, by="direct")
    for extreme in ("zeros", "huge", "nan"):
        options = {"extreme": extreme, "by": "direct"}
        yield case(_tile, extreme == "nan", "direct", kind="Q8_0", rows=5, n=65, columns=96, cap=3.0, **options)
