"""Cases of training's kernels, except attention and experts: the backward pass of matmuls, norms and activations,
adapters, the loss, and the optimiser."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgemma.model.forms import tile_back_form
from wgemma.model.planes import TRAINABLE
from wgemma.reference import backward_twins as twins
from wgemma.reference.backward_twins import Step, Targets
from wgemma.reference.lab import EPS, F32, THREADS, Case, Lab, Outcome, case, framed, takes, untouched, widths
from wgemma.reference.twins import wide

OFFSET = 3  # of the columns read within a row of dy
TARGETS = {
    "one": Targets(),
    "two": Targets(64),
    "three": Targets(33, 70),
    "alternating": Targets(interleaved=1),
}
GROUPS = 3  # workgroups, few enough that each loops


def cases() -> Iterator[Case]:
    yield from _tile_back_cases()
    yield from _norm_back_cases()
    yield from _activate_back_cases()
    yield from _low_cases()
    yield from _loss_cases()
    yield from _optimiser_cases()
    yield from _dropout_cases()


def _tile_back_cases() -> Iterator[Case]:
    """Every tile height, and every type with the tallest."""
    yield case(_tile_back, True, kind="Q8_0", rows=9, n=40, columns=96, add=1, most=33)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_tile_back, extreme == "nan", kind="Q8_0", rows=33, n=65, columns=96, extreme=extreme)
    for rows, n, columns in (
        (1, 7, 288),
        (32, 33, 64),
        (33, 130, 32),
        (64, 32, 288),
        (65, 1, 96),
        (128, 64, 32),
        (130, 65, 96),
    ):
        yield case(_tile_back, rows in (64, 130), kind="Q4_0", rows=rows, n=n, columns=columns)
    for kind in TRAINABLE:
        narrow, middling, broad = widths(kind)
        yield case(_tile_back, True, kind=kind, rows=70, n=65, columns=middling)
        yield case(_tile_back, False, kind=kind, rows=70, n=130, columns=narrow, most=50)
        yield case(_tile_back, False, kind=kind, rows=70, n=7, columns=broad, add=1)
    for kind, rows, n, columns in (("Q4_K", 33, 65, 768), ("Q6_K", 3, 7, 256), ("F32", 4, 33, 544)):
        yield case(_direct_back, rows == 33, kind=kind, rows=rows, n=n, columns=columns)
    yield case(_direct_back, True, kind="Q8_0", rows=9, n=40, columns=96, add=1, most=33)


@dataclass(frozen=True, slots=True)
class Transposed:
    kind: str
    rows: int
    n: int
    columns: int
    most: int = 0
    add: int = 0
    extreme: str = ""


@takes(Transposed)
def _tile_back(lab: Lab, asked: Transposed) -> Outcome:
    return _transposed(lab, "tile_back", 64, asked)


@takes(Transposed)
def _direct_back(lab: Lab, asked: Transposed) -> Outcome:
    return _transposed(lab, "direct_back", 512, asked)


def _transposed(lab: Lab, kernel: str, wide: int, asked: Transposed) -> Outcome:
    rows, n, columns, add = asked.rows, asked.n, asked.columns, asked.add
    matrix, w = lab.weights(asked.kind, n, columns, asked.most)
    dy = lab.activations(rows, n + 5, extreme=asked.extreme)
    before = lab.normal(rows, columns)
    given, dx = lab.put(dy), lab.held(before) if add else lab.out(rows * columns)
    constants: dict[str, Any] = {"TYPE": matrix.planes.reader}
    if kernel == "tile_back":
        constants |= tile_back_form(lab.device, rows)
    for part in matrix.parts:
        params = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
        params |= {"stride": n + 5, "offset": OFFSET + part.first, "add": add or part.first > 0}
        bindings = {**part.bindings(), "dy": given, "dx": dx}
        grid = [-(-columns // wide), -(-rows // constants.get("ROWS", 4))]
        lab.run(kernel, grid, bindings, params, constants)
    expected = add * before + twins.linear_back(w, dy[:, OFFSET : OFFSET + n])
    return Outcome((lab.read(dx),), (framed(expected),), F32)


def _norm_back_cases() -> Iterator[Case]:
    for residual in (False, True):
        for rows, columns in ((1, 32), (3, 288), (9, 2112)):
            yield case(_norm_back, rows == 3, rows=rows, columns=columns, residual=residual)
        for extreme in ("zeros", "huge", "nan"):
            yield case(_norm_back, False, rows=3, columns=96, residual=residual, extreme=extreme)


def _norm_back(lab: Lab, rows: int, columns: int, residual: bool, extreme: str = "") -> Outcome:
    """`scale` is the layer's; w is the second of two norms."""
    scale, x, norms = np.float32(0.7), lab.activations(rows, columns, extreme=extreme), lab.norms(2, columns)
    above, before = lab.normal(rows, columns), lab.normal(rows, columns)
    back = twins.rms_back(x, norms[1], scale * wide(above), EPS)
    params = {"blocks": columns // 32, "first": columns // 4, "scale": float(scale), "eps": EPS}
    bindings = {"x": lab.put(x), "norms": lab.put(norms)}
    constants: dict[str, Any] = {"THREADS": THREADS, "RESIDUAL": residual}
    if residual:
        dv, d = lab.held(above), lab.out(x.size)
        lab.run("norm_back", [rows], bindings | {"dv": dv, "d": d}, params, constants)
        return Outcome((lab.read(dv), lab.read(d)), (framed(scale * above), framed(back)), F32)
    d = lab.held(before)
    lab.run("norm_back", [rows], bindings | {"dy": lab.put(above), "d": d}, params, constants)
    return Outcome((lab.read(d),), (framed(before + back),), F32)


def _activate_back_cases() -> Iterator[Case]:
    for mode in ("GEGLU", "APART", "SIDE"):
        for rows, n in ((1, 1), (2, 7), (9, 255), (33, 300)):
            yield case(_activate_back, rows == 9, rows=rows, n=n, mode=mode)
        for extreme in ("zeros", "huge", "nan"):
            yield case(_activate_back, extreme == "nan", rows=3, n=33, mode=mode, extreme=extreme)


def _activate_back(lab: Lab, rows: int, n: int, mode: str, extreme: str = "") -> Outcome:
    x = lab.activations(rows, n if mode == "SIDE" else 2 * n, extreme=extreme)
    if not extreme:
        x *= np.float32(3)
    side, dy, dx = lab.normal(rows, n + 9), lab.normal(rows, n), lab.out(x.size)
    bindings = {"x": lab.put(x), "dy": lab.put(dy), "side": lab.put(side), "dx": dx}
    params = {"n": n, **({"side_stride": n + 9, "side_offset": 4} if mode == "SIDE" else {})}
    lab.run("activate_back", [-(-n // 256), rows], bindings, params, {mode: True})
    if mode == "SIDE":
        expected, _ = twins.gated_back(x, side[:, 4 : 4 + n], dy)
    else:
        expected = (twins.geglu_back if mode == "GEGLU" else twins.apart_back)(x, dy)
    return Outcome((lab.read(dx),), (framed(expected),), F32)


def _low_cases() -> Iterator[Case]:
    """Both halves of an adapter; ranks other than sixteen, columns of one target and of several."""
    for body in (_low_back, _low_grad):
        yield case(body, False, rows=1, rank=1, n=1, targets="one")
        for targets in TARGETS:
            for rows, rank, n in ((5, 7, 100), (33, 16, 300), (3, 17, 600), (66, 40, 257)):
                yield case(body, rows == 5 or targets == "one", rows=rows, rank=rank, n=n, targets=targets)
        for extreme in ("zeros", "huge", "nan"):
            yield case(body, False, rows=3, rank=4, n=80, targets="three", extreme=extreme)


def _low_back(lab: Lab, rows: int, rank: int, n: int, targets: str, extreme: str = "") -> Outcome:
    of = TARGETS[targets]
    count = int(of.of(n).max()) + 1
    dy, b = lab.activations(rows, n + 5, extreme=extreme), lab.normal(rank, n)
    scales = lab.norms(count * rank)
    g = lab.out(rows * count * rank)
    bindings = {"dy": lab.put(dy), "b": lab.put(b), "scales": lab.put(scales), "g": g}
    grid = [count * -(-rank // 16), -(-rows // 4)]
    params = {"rank": rank, "targets": count, "n": n, "stride": n + 5, "offset": OFFSET, "rows": rows}
    lab.run("low_back", grid, bindings, {**params, **of._asdict()})
    expected = twins.low_back(dy[:, OFFSET : OFFSET + n], b, scales, of)
    return Outcome((lab.read(g),), (framed(expected),), F32)


def _low_grad(lab: Lab, rows: int, rank: int, n: int, targets: str, extreme: str = "") -> Outcome:
    of = TARGETS[targets]
    count = int(of.of(n).max()) + 1
    p, q = lab.normal(rows, count * rank), lab.activations(rows, n + 5, extreme=extreme)
    before = lab.normal(rank, n)
    d = lab.held(before)
    params = {"rank": rank, "p_stride": p.shape[1], "n": n, "q_stride": n + 5, "q_offset": OFFSET, "rows": rows}
    grid = [-(-n // 64), -(-rank // 16)]
    lab.run("low_grad", grid, {"p": lab.put(p), "q": lab.put(q), "d": d}, {**params, **of._asdict()})
    expected = before + twins.low_grad(p, q[:, OFFSET : OFFSET + n], rank, of)
    return Outcome((lab.read(d),), (framed(expected),), F32)


def _loss_cases() -> Iterator[Case]:
    """Vocabularies in tiles, the last smaller; rows without a target."""
    for rows, vocabulary, tile in ((1, 1, 1), (5, 301, 301), (9, 1000, 384), (3, 600, 256)):
        for mode in ("SCAN", "BACK"):
            yield case(_loss, rows == 9, rows=rows, vocabulary=vocabulary, tile=tile, mode=mode)
    yield case(_loss, True, rows=4, vocabulary=70, tile=40, mode="BACK", cap=0.0)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_loss, False, rows=3, vocabulary=70, tile=40, mode="SCAN", extreme=extreme)
        yield case(_loss, False, rows=3, vocabulary=70, tile=40, mode="BACK", extreme=extreme)
    for rows in (1, 9, 600):
        yield case(_nll, rows == 9, rows=rows)


def _targets(lab: Lab, rows: int, vocabulary: int) -> NDArray[np.int64]:
    """Every third row has no target."""
    targets = lab.rng.integers(0, vocabulary, rows)
    targets[2::3] = twins.NO_TARGET
    return targets


def _loss(lab: Lab, rows: int, vocabulary: int, tile: int, mode: str, cap: float = 30.0, extreme: str = "") -> Outcome:
    """With a cap there are no huge logits: they are all at the cap."""
    logits = lab.activations(rows, vocabulary, extreme=extreme) * np.float32(10)
    logits = np.clip(logits, -30, 30)
    targets = _targets(lab, rows, vocabulary)
    known = targets != twins.NO_TARGET
    right = twins.scan(logits, targets)
    expected = untouched(rows, 4)
    expected[known] = right[known]
    state = lab.held(right) if mode == "BACK" else lab.out(4 * rows)
    tiles = [logits[:, first : first + tile] for first in range(0, vocabulary, tile)]
    held = [lab.held(part) for part in tiles]
    for i, part in enumerate(tiles):
        bindings = {"logits": held[i], "targets": lab.put(targets, "<u4"), "state": state}
        params = {"width": part.shape[1], "first": i * tile, "fresh": i == 0, "cap": cap}
        lab.run("loss", [rows], bindings, params, {"THREADS": THREADS, mode: True})
    if mode == "BACK":
        d = twins.loss_back(logits, right, targets, cap)
        slices = tuple(framed(d[:, first : first + tile]) for first in range(0, vocabulary, tile))
        return Outcome(tuple(lab.read(part) for part in held), slices, F32)
    got, right = lab.read(state), framed(expected)
    broken = np.flatnonzero(np.isnan(right[1 : 4 * rows : 4])) * 4
    right[broken] = got[broken]  # whether max() of numbers and NaN is NaN depends on the driver
    return Outcome((got,), (right,), F32)


def _nll(lab: Lab, rows: int) -> Outcome:
    targets = _targets(lab, rows, 100)
    state = np.abs(lab.normal(rows, 4)) + np.float32(1)
    nll, total = lab.out(rows), lab.held(np.array([2.5]))
    bindings = {"state": lab.put(state), "targets": lab.put(targets, "<u4"), "nll": nll, "total": total}
    lab.run("nll", [1], bindings, {"rows": rows}, {"THREADS": THREADS})
    right = twins.nll(state, targets)
    return Outcome((lab.read(nll), lab.read(total)), (framed(right), framed(np.array([2.5 + right.sum()]))), F32)


def _optimiser_cases() -> Iterator[Case]:
    for count in (1, 255, 1000, 5000):
        for fresh in (0, 1):
            yield case(_sum_squares, count == 1000, count=count, fresh=fresh)
        for clip, t, share in ((1.0, 1, 1.0), (0.0, 10, 0.2), (1e6, 1000, 0.1), (0.3, 2, 0.1)):
            yield case(_adamw, count == 1000, count=count, clip=clip, t=t, share=share)


def _sum_squares(lab: Lab, count: int, fresh: int) -> Outcome:
    g, before = lab.normal(count), 2.5
    shares, norm = lab.out(GROUPS), lab.held(np.array([before]))
    constants: dict[str, Any] = {"THREADS": THREADS}
    lab.run("sum_squares", [GROUPS], {"gradients": lab.put(g), "shares": shares}, {"count": count}, constants)
    join = constants | {"JOIN": True}
    lab.run("sum_squares", [1], {"shares": shares, "norm": norm}, {"count": GROUPS, "fresh": fresh}, join)
    right = (0 if fresh else before) + np.square(wide(g)).sum()
    return Outcome((lab.read(norm),), (framed(np.array([right])),), F32)


def _adamw(lab: Lab, count: int, clip: float, t: int, share: float) -> Outcome:
    step = Step(rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01, clip=clip, t=t, share=share)
    values, g, first = (lab.normal(count) for _ in range(3))
    second, norm = np.square(lab.normal(count)), np.array([30.0])
    right = twins.adamw(values, g, first, second, float(norm[0]), step)
    held = {"values": lab.held(values), "first": lab.held(first), "second": lab.held(second), "gradients": lab.held(g)}
    lab.run("adamw", [GROUPS], {**held, "norm": lab.put(norm)}, step.params(count))
    got = tuple(lab.read(buffer) for buffer in held.values())
    return Outcome(got, (*(framed(part) for part in right), framed(np.zeros(count))), F32)


def _dropout_cases() -> Iterator[Case]:
    for rows, columns, share in ((1, 1, 0.5), (5, 300, 0.1), (33, 96, 0.5), (3, 256, 0.0)):
        for add in (0, 1):
            yield case(_dropout, rows == 5, rows=rows, columns=columns, share=share, add=add)


def _dropout(lab: Lab, rows: int, columns: int, share: float, add: int) -> Outcome:
    """With a 32-bit seed."""
    x, before = lab.normal(rows, columns), lab.normal(rows, columns)
    threshold, seed, salt = round(share * 2**32), 0xDEADBEEF, 1000
    scale = float(np.float32(1 / (1 - share)))
    y = lab.held(before) if add else lab.out(x.size)
    grid = [-(-columns // 256), rows]
    bindings = {"x": lab.put(x), "y": y, "seed": lab.put(np.array([seed]), "<u4")}
    params = {"count": columns, "threshold": threshold, "salt": salt, "scale": scale, "add": add}
    lab.run("dropout", grid, bindings, params)
    return Outcome((lab.read(y),), (framed(add * before + twins.dropout(x, threshold, seed, salt, scale)),), F32)
