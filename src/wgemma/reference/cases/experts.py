"""Cases of experts with many rows: group, which sorts rows by expert, and tile on its result."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.gpu.device import Binding
from wgemma.model.forms import tile_shape
from wgemma.model.planes import PLANES
from wgemma.reference import twins
from wgemma.reference.lab import F32, THREADS, Case, Lab, Outcome, case, clear_of_ties, framed, takes, widths


def cases() -> Iterator[Case]:
    yield from _group_cases()
    yield from _tile_cases()


def _group_cases() -> Iterator[Case]:
    """Fewer pairs than threads, and more than a thread takes at once; experts with no pairs, all, and full tiles."""
    for rows, slots, experts in ((1, 1, 1), (3, 3, 5), (33, 3, 7), (128, 4, 12), (700, 5, 9), (512, 8, 128)):
        for skew in ("even", "crowded"):
            quick = rows in (33, 700) and skew == "crowded"
            yield case(_group, quick, rows=rows, slots=slots, experts=experts, tall=32, skew=skew)
    for skew in ("one", "steps"):
        yield case(_group, skew == "steps", rows=160, slots=2, experts=6, tall=32, skew=skew)
    yield case(_group, False, rows=130, slots=3, experts=1000, tall=64, skew="even")


def _group(lab: Lab, rows: int, slots: int, experts: int, tall: int, skew: str) -> Outcome:
    chosen = chosen_by(lab, rows, slots, experts, skew)
    count = rows * slots // tall + experts
    order, tiles = lab.out(chosen.size), lab.out(4 * count)
    behind = np.zeros(8)  # not pairs of the first expert
    given = lab.put(np.concatenate([chosen.ravel(), behind]), "<u4")
    bindings: dict[str, Binding] = {"chosen": given, "order": order, "tiles": tiles}
    lab.run("group", [experts], bindings, {"pairs": chosen.size, "tall": tall}, {"THREADS": THREADS})
    expected = twins.group(chosen, experts, tall)
    assert len(expected[1]) == count
    return Outcome((lab.read(order, "<u4"), lab.read(tiles, "<u4")), (framed(expected[0]), framed(expected[1])), 0.0)


def chosen_by(lab: Lab, rows: int, slots: int, experts: int, skew: str) -> NDArray[np.int64]:
    """Distinct experts in every row, as a router chooses them, evenly or skewed; all pairs to one expert; or `steps`:
    experts with 64, 0, 32, 1, 33 and the remaining pairs."""
    if skew == "one":
        return np.full((rows, slots), experts - 2)
    if skew == "steps":
        sizes = [64, 0, 32, 1, 33]
        all_of_them = np.repeat(np.arange(6), [*sizes, rows * slots - sum(sizes)])
        return lab.rng.permutation(all_of_them).reshape(rows, slots)
    shares = np.arange(1.0, experts + 1) ** (0 if skew == "even" else -2)
    liked = np.log(shares) + lab.rng.gumbel(size=(rows, experts))
    return np.argsort(-liked, axis=1)[:, :slots]


def _tile_cases() -> Iterator[Case]:
    """Every type, two heights, both kinds of input, and full, nearly full and empty tiles."""
    for kind in PLANES:
        narrow, middling, _ = widths(kind)
        yield case(_experts, kind in ("Q4_K", "Q8_0"), "tile", kind=kind, rows=70, n=70, columns=middling)
        yield case(_experts, kind == "F16", "tile", kind=kind, rows=40, n=33, columns=narrow, weighted=True)
    options: dict[str, Any]
    for skew in ("one", "steps"):
        for weighted in (False, True):
            options = {"weighted": weighted, "skew": skew}
            yield case(_experts, False, "tile", kind="Q4_0", rows=96, n=65, columns=96, **options)
    for weighted in (False, True):
        options = {"weighted": weighted, "tall": 32}
        yield case(_experts, False, "tile", kind="Q6_K", rows=140, n=64, columns=256, **options)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_experts, False, "tile", kind="Q8_0", rows=33, n=10, columns=288, extreme=extreme)
    for weighted in (False, True):
        options = {"weighted": weighted, "tall": 32, "in_bytes": True}
        yield case(_experts, True, "tile_bytes", kind="Q4_0", rows=70, n=70, columns=96, **options)
        options |= {"skew": "steps"}
        for kind, planes in PLANES.items():
            if planes.quick:
                yield case(_experts, False, "tile_bytes", kind=kind, rows=96, n=65, columns=256, **options)


@dataclass(frozen=True, slots=True)
class Experts:
    kind: str
    rows: int
    n: int
    columns: int
    weighted: bool = False
    skew: str = "crowded"
    tall: int = 64
    extreme: str = ""
    in_bytes: bool = False


@takes(Experts)
def _experts(lab: Lab, asked: Experts) -> Outcome:
    """Six experts in parts of two, two slots per row."""
    rows, n, columns, weighted = asked.rows, asked.n, asked.columns, asked.weighted
    experts, slots, together = 6, 2, 2
    matrix, w = lab.weights(asked.kind, experts * n, columns, together * n)
    chosen = chosen_by(lab, rows, slots, experts, asked.skew)
    order, tiles = twins.group(chosen, experts, asked.tall)
    weights = lab.rng.uniform(0.1, 1, (rows, slots)).astype(np.float32)
    x = lab.activations(rows, *((slots,) if weighted else ()), columns, extreme=asked.extreme)
    x = clear_of_ties(x) if asked.in_bytes else x
    y = lab.out(chosen.size * n)
    bindings: dict[str, Binding] = {"x": lab.put(x), "weights": lab.put(weights), "y": y}
    bindings |= {"order": lab.put(order, "<u4"), "tiles": lab.put(tiles, "<u4")}
    constants = tile_shape(asked.tall) | {"TYPE": matrix.planes.reader, "EXPERTS": True, "WEIGHTED": weighted}
    kernel = "tile"
    if asked.in_bytes:
        kernel, constants["QUICK"] = "tile_bytes", True
        bindings["bytes"], blocks = lab.out(12 * x.size // 32), x.size // 32
        lab.run("to_bytes", [-(-blocks // 64)], {"x": bindings["x"], "bytes": bindings["bytes"]}, {"blocks": blocks})
        x = twins.rounded(x)
    for part in matrix.parts:
        params = {"blocks": matrix.blocks, "n": n, "rows": chosen.size, "y_stride": n, "y_offset": 0}
        params |= {"share": 1 if weighted else slots, **part.experts(n)}
        lab.run(kernel, [-(-n // 64), len(tiles)], {**part.bindings(), **bindings}, params, constants)
    result = twins.experts(w.reshape(experts, n, columns), x, chosen, weights if weighted else None)
    return Outcome((lab.read(y),), (framed(result),), F32)
