"""Cases of the experts' backward pass: experts_join_back, experts_back, route_back, experts_norm_back."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model.planes import TRAINABLE
from wgemma.reference import experts_back_twins as back
from wgemma.reference import twins
from wgemma.reference.lab import EPS, F32, THREADS, Case, Lab, Outcome, case, framed, widths


def cases() -> Iterator[Case]:
    yield from _norm_cases()
    yield from _expert_cases()
    yield from _route_cases()


def _norm_cases() -> Iterator[Case]:
    for rows, columns in ((1, 32), (7, 96), (8, 288), (33, 2112)):
        for body in (_experts_join_back, _experts_norm_back):
            yield case(body, rows == 7, rows=rows, columns=columns, slots=1 + rows % 8)
    for extreme in ("zeros", "huge", "nan"):
        for body in (_experts_join_back, _experts_norm_back):
            yield case(body, extreme == "nan", rows=3, columns=96, slots=2, extreme=extreme)


def _experts_join_back(lab: Lab, rows: int, columns: int, slots: int, extreme: str = "") -> Outcome:
    dense = lab.activations(rows, columns, extreme=extreme)
    routed, dy = lab.activations(rows, slots, columns, extreme=extreme), lab.normal(rows, columns)
    norms, d_dense, d_sum = lab.norms(2, columns), lab.out(rows * columns), lab.out(rows * columns)
    bindings = {"dense": lab.put(dense), "routed": lab.put(routed), "norms": lab.put(norms), "dy": lab.put(dy)}
    bindings |= {"d_dense": d_dense, "d_sum": d_sum}
    params = {"blocks": columns // 32, "slots": slots, "eps": EPS}
    lab.run("experts_join_back", [rows], bindings, params, {"THREADS": THREADS})
    expected = back.experts_join_back(dense, routed, norms, dy, EPS)
    return Outcome((lab.read(d_dense), lab.read(d_sum)), (framed(expected[0]), framed(expected[1])), F32)


def _experts_norm_back(lab: Lab, rows: int, columns: int, slots: int, extreme: str = "") -> Outcome:
    """The gradient is added to existing values."""
    v, norms = lab.activations(rows, columns, extreme=extreme), lab.norms(4, columns)
    d_dense, d_router, before = lab.normal(3, rows, columns)
    d_experts, dv = lab.normal(rows, slots, columns), lab.held(before)
    bindings = {"v": lab.put(v), "norms": lab.put(norms), "d_dense": lab.put(d_dense), "d_router": lab.put(d_router)}
    bindings |= {"d_experts": lab.put(d_experts), "dv": dv}
    params = {"blocks": columns // 32, "slots": slots, "eps": EPS}
    lab.run("experts_norm_back", [rows], bindings, params, {"THREADS": THREADS})
    expected = before + back.experts_norm_back(v, norms, d_dense, d_experts, d_router, EPS)
    return Outcome((lab.read(dv),), (framed(expected),), F32)


def _expert_cases() -> Iterator[Case]:
    for kind in TRAINABLE:
        narrow, middling, wide = widths(kind)
        yield case(_experts_back, True, kind=kind, rows=3, n=10, columns=middling, per_slot=True, add=False)
        yield case(_experts_back, kind == "Q4_0", kind=kind, rows=2, n=35, columns=narrow, per_slot=False, add=True)
        yield case(_experts_back, False, kind=kind, rows=2, n=33, columns=wide, per_slot=True, add=True)
    for extreme in ("zeros", "huge", "nan"):
        options: dict[str, Any] = {"per_slot": False, "add": False, "extreme": extreme}
        yield case(_experts_back, False, kind="Q8_0", rows=3, n=10, columns=288, **options)


def _experts_back(
    lab: Lab, kind: str, rows: int, n: int, columns: int, per_slot: bool, add: bool, extreme: str = ""
) -> Outcome:
    """Five experts in parts of two, three slots per row."""
    count, slots, together = 5, 3, 2
    matrix, w = lab.weights(kind, count * n, columns, together * n)
    chosen = np.stack([lab.rng.permutation(count)[:slots] for _ in range(rows)])
    dy = lab.activations(rows, *((slots,) if per_slot else ()), n, extreme=extreme)
    before = lab.normal(rows, slots, columns)
    dx = lab.held(before) if add else lab.out(before.size)
    expected = back.experts_back(w.reshape(count, n, columns), dy, chosen) + add * before
    bindings: dict[str, Binding] = {"dy": lab.put(dy), "chosen": lab.put(chosen, "<u4"), "dx": dx}
    constants = {"TYPE": matrix.planes.reader, "PER_SLOT": per_slot}
    for part in matrix.parts:
        params = {
            "blocks": matrix.blocks,
            "n": n,
            "slots": slots,
            "first_expert": part.first // n,
            "experts": part.rows // n,
            "add": add,
        }
        grid = [-(-matrix.blocks // 8), rows, slots]
        lab.run("experts_back", grid, {**part.bindings(), **bindings}, params, constants)
    return Outcome((lab.read(dx),), (framed(expected),), F32)


def _route_cases() -> Iterator[Case]:
    for rows, experts, used, width in ((1, 1, 1, 32), (2, 8, 2, 70), (9, 128, 8, 96), (3, 130, 4, 704), (2, 64, 64, 5)):
        yield case(_route_back, rows == 9, rows=rows, experts=experts, used=used, width=width)
    for extreme in ("zeros", "huge"):
        yield case(_route_back, False, rows=3, experts=128, used=8, width=32, extreme=extreme)


def _route_back(lab: Lab, rows: int, experts: int, used: int, width: int, extreme: str = "") -> Outcome:
    """One of the chosen experts has a scale of 0."""
    scores, scale = lab.activations(rows, experts, extreme=extreme), lab.norms(experts)
    chosen, _ = twins.route(scores, scale, used)
    scale[chosen[0, -1]] = 0
    act, given = lab.normal(2, rows, used, width)
    d_act, dscores = lab.held(given), lab.out(rows * experts)
    bindings = {"scores": lab.put(scores), "expert_scale": lab.put(scale), "chosen": lab.put(chosen, "<u4")}
    bindings |= {"act": lab.put(act), "d_act": d_act, "dscores": dscores}
    lab.run("route_back", [rows], bindings, {"experts": experts, "used": used, "width": width}, {"THREADS": 64})
    expected = back.route_back(scores, scale, chosen, act, given)
    return Outcome((lab.read(d_act), lab.read(dscores)), (framed(expected[0]), framed(expected[1])), F32)
