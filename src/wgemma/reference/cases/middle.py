"""Cases of the matmul for 2 to 64 rows: middle with everything fused after the product, in shares, and with experts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model.forms import SMALL, Middle, middle_shape, rounding_shape
from wgemma.model.planes import PLANES
from wgemma.reference import twins
from wgemma.reference.cases.experts import chosen_by
from wgemma.reference.cases.tiles import byte_words, rounded_outputs
from wgemma.reference.lab import F32, Case, Lab, Outcome, case, clear_of_ties, framed, takes, untouched, widths

OFFSET = 3  # of the results within a row of y
SIDE_OFFSET = 4
EIGHT_BITS, SIXTEEN_BITS = 127, 32639  # the largest integers x is rounded to


def cases() -> Iterator[Case]:
    yield from _product_cases()
    yield from _expert_cases()


def _product_cases() -> Iterator[Case]:
    """Every type, exact and rounded; every shape of tile; what follows the product; K in whole batches, in part of one,
    and in shares."""
    for kind, planes in PLANES.items():
        narrow, middling, wide = widths(kind)
        for largest in (0, EIGHT_BITS, SIXTEEN_BITS) if planes.quick else (0,):
            options: dict[str, Any] = {"kind": kind, "largest": largest, "n": 70}
            quick = kind in ("Q2_K", "Q4_K", "Q6_K", "Q8_0", "IQ4_NL", "F16")
            yield case(_middle, quick, **options, rows=7, columns=middling, tile=(8, 4, 32, 2, 1))
            yield case(_middle, False, **options, rows=20, columns=narrow, tile=(16, 8, 64, 1, 1), most=50)
            yield case(_middle, False, **options, rows=3, columns=wide, tile=(4, 4, 16, 4, 1))
    tiles = ((2, 2, 32, 8, 1), (8, 8, 32, 8, 1), (8, 4, 16, 8, 1), (16, 8, 64, 4, 1), (32, 8, 64, 2, 1))
    for tile in (*tiles, (64, 8, 64, 1, 2), (64, 16, 32, 1, 2)):
        options = {"kind": "Q4_K", "largest": EIGHT_BITS, "rows": tile[0] - 1, "n": 67, "columns": 768, "tile": tile}
        yield case(_middle, tile[0] == 64, **options)
    for tile in ((8, 4, 32, 2, 1), (16, 4, 64, 1, 1), (32, 8, 64, 1, 1), (64, 8, 32, 1, 1)):
        yield case(_middle, False, kind="Q4_0", rows=tile[0] + 2, n=67, columns=288, tile=tile)
    for mode in ("GEGLU", "PLE", "SOFTCAP"):
        for largest in (0, EIGHT_BITS):
            options = {"kind": "Q8_0", "largest": largest, "mode": mode, "most": 22, "tile": (8, 4, 32, 2, 1)}
            yield case(_middle, True, **options, rows=9, n=66, columns=288)
    for tile in ((4, 4, 64, 4, 1), (8, 8, 64, 4, 1), (32, 8, 64, 2, 1), (64, 8, 64, 1, 2), (8, 2, 128, 1, 1)):
        rows = tile[0] + 3
        yield case(_rounding, tile[0] in (8, 64), "middle", kind="Q4_0", rows=rows, n=192, columns=288, tile=tile)
    yield case(_rounding, False, "middle", kind="Q6_K", rows=9, n=256, columns=256, tile=(8, 8, 64, 4, 1), most=128)
    for extreme in ("zeros", "huge", "nan"):
        options = {"kind": "Q8_0", "largest": EIGHT_BITS, "extreme": extreme, "tile": (4, 4, 32, 4, 1)}
        yield case(_middle, extreme == "nan", **options, rows=3, n=33, columns=288)
    for largest in (0, EIGHT_BITS):
        options = {"kind": "Q4_0", "largest": largest, "shares": 4, "tile": (8, 4, 32, 2, 1)}
        yield case(_middle, True, **options, rows=9, n=70, columns=288)


@dataclass(frozen=True, slots=True)
class MiddleCase:
    kind: str
    rows: int
    n: int
    columns: int
    tile: tuple[int, int, int, int, int]
    largest: int = 0  # integer x is rounded to
    mode: str = ""
    most: int = 0  # rows per part
    extreme: str = ""
    shares: int = 1
    cap: float = 3.0


@takes(MiddleCase)
def _middle(lab: Lab, asked: MiddleCase) -> Outcome:
    rows, n, columns, mode, shares = asked.rows, asked.n, asked.columns, asked.mode, asked.shares
    matrix, w = lab.weights(asked.kind, n, columns, asked.most)
    each = 2 if mode == "GEGLU" else 1
    width, stride, side_stride = n // each, n // each + 5, n + 9
    x, side = lab.activations(rows, columns, extreme=asked.extreme), lab.normal(rows, side_stride)
    x = clear_of_ties(x) if asked.largest and not asked.extreme else x
    given, x = _given(lab, x, asked.largest)
    y = lab.out(shares * rows * stride)
    form = middle_shape(lab.device, Middle(*asked.tile), quick=asked.largest > 0, fine=asked.largest == SIXTEEN_BITS)
    constants = form | {"TYPE": matrix.planes.reader} | ({mode: True} if mode else {})
    for part in matrix.parts:
        first = part.first // each
        params: dict[str, float] = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
        params |= {"y_stride": stride, "y_offset": OFFSET + first}
        params |= {"cap": asked.cap} if mode == "SOFTCAP" else {}
        params |= {"side_stride": side_stride, "side_offset": SIDE_OFFSET + first} if mode == "PLE" else {}
        bindings: dict[str, Binding] = {**part.bindings(), "x": given, "y": y, "side": lab.put(side)}
        grid = [-(-part.rows // form["COLUMNS"]), -(-rows // form["ROWS"]), shares]
        lab.run("middle", grid, bindings, params, constants)
    result = twins.shared(w, x, shares)
    if mode == "GEGLU":
        result = twins.geglu(result)
    elif mode == "PLE":
        result = twins.gated(result, side[:, SIDE_OFFSET : SIDE_OFFSET + n])
    elif mode == "SOFTCAP":
        result = twins.capped(result, asked.cap)
    expected = untouched(shares, rows, stride)
    expected[:, :, OFFSET : OFFSET + width] = result
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _rounding(
    lab: Lab, kind: str, rows: int, n: int, columns: int, tile: tuple[int, int, int, int, int], most: int = 0
) -> Outcome:
    """The same numbers as without rounding, but in bytes."""
    matrix, w = lab.weights(kind, n, columns, most)
    given, x = _given(lab, clear_of_ties(lab.activations(rows, columns)), EIGHT_BITS)
    y, room = lab.out(rows * n // 2), lab.out(rows * n // 64 * byte_words(fine=False))
    for form in (middle_shape(lab.device, Middle(*tile), quick=True), rounding_shape(lab.device, Middle(*tile))):
        for part in matrix.parts:
            params = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
            params |= {"y_stride": n // 2, "y_offset": part.first // 2}
            bindings: dict[str, Binding] = {**part.bindings(), "x": given, "y": y, "bytes": room}
            constants = form | {"TYPE": matrix.planes.reader, "GEGLU": True}
            lab.run("middle", [-(-part.rows // tile[2]), -(-rows // tile[0])], bindings, params, constants)
    values = lab.read(y)
    numbers = values[: rows * n // 2].astype(np.float32).reshape(rows, n // 2)
    rounded, right = rounded_outputs(lab, room, numbers, fine=False)
    return Outcome((values, *rounded), (framed(twins.geglu(twins.linear(w, x))), *right), F32)


def _given(lab: Lab, x: twins.Array, largest: int) -> tuple[Binding, twins.Array]:
    """The input on the device, in bytes if it is rounded, and its numbers."""
    given = lab.put(x)
    if not largest:
        return given, x
    fine, blocks = largest == SIXTEEN_BITS, x.size // 32
    room = lab.out((20 if fine else 12) * blocks)
    lab.run("to_bytes", [-(-blocks // 64)], {"x": given, "bytes": room}, {"blocks": blocks}, {"FINE": fine})
    return room, twins.rounded(x, largest)


def _expert_cases() -> Iterator[Case]:
    """Tiles of eight pairs: full, nearly full and empty; exact and rounded; with GEGLU and weighted."""
    for largest in (0, EIGHT_BITS):
        for mode in ("", "GEGLU", "WEIGHTED"):
            options: dict[str, Any] = {"largest": largest, "mode": mode, "rows": 20, "n": 70}
            yield case(_experts, True, "middle", kind="Q4_0", columns=288, **options)
            yield case(_experts, False, "middle", kind="Q6_K", columns=768, **options)
    for kind, planes in PLANES.items():
        for largest in (0, EIGHT_BITS) if planes.quick else (0,):
            yield case(_experts, False, "middle", kind=kind, columns=256, largest=largest, rows=64, n=33)


def _experts(lab: Lab, kind: str, rows: int, n: int, columns: int, largest: int, mode: str = "") -> Outcome:
    """Six experts in parts of two, two slots per row."""
    experts, slots, together, weighted = 6, 2, 2, mode == "WEIGHTED"
    matrix, w = lab.weights(kind, experts * n, columns, together * n)
    chosen = chosen_by(lab, rows, slots, experts, "crowded")
    order, tiles = twins.group(chosen, experts, SMALL)
    weights = lab.rng.uniform(0.1, 1, (rows, slots)).astype(np.float32)
    x = lab.activations(rows, *((slots,) if weighted else ()), columns)
    given, x = _given(lab, clear_of_ties(x) if largest else x, largest)
    width = n // 2 if mode == "GEGLU" else n
    y = lab.out(chosen.size * width)
    bindings: dict[str, Binding] = {"x": given, "weights": lab.put(weights), "y": y}
    bindings |= {"order": lab.put(order, "<u4"), "tiles": lab.put(tiles, "<u4")}
    form = middle_shape(lab.device, Middle(8, 4, 32, 2), quick=largest > 0)
    constants = form | {"TYPE": matrix.planes.reader, "EXPERTS": True} | ({mode: True} if mode else {})
    for part in matrix.parts:
        params = {"blocks": matrix.blocks, "n": n, "rows": chosen.size, "y_stride": width, "y_offset": 0}
        params |= {"share": 1 if weighted else slots, **part.experts(n)}
        lab.run("middle", [-(-n // 32), len(tiles)], {**part.bindings(), **bindings}, params, constants)
    result = twins.experts(w.reshape(experts, n, columns), x, chosen, weights if weighted else None)
    return Outcome((lab.read(y),), (framed(twins.geglu(result) if mode == "GEGLU" else result),), F32)
