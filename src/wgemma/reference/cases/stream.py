"""Cases of the kernels between the matmuls: norm, activate, ple, experts_norm, experts_join, route."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model.experts import norm_constants
from wgemma.model.forms import pairs
from wgemma.reference import twins
from wgemma.reference.cases.tiles import byte_words, rounded_outputs
from wgemma.reference.lab import EPS, F32, THREADS, Case, Lab, Outcome, case, framed, untouched
from wgemma.reference.twins import Array


def cases() -> Iterator[Case]:
    yield from _norm_cases()
    yield from _activate_cases()
    yield from _ple_cases()
    yield from _mixture_cases()
    yield from _route_cases()


def _norm_cases() -> Iterator[Case]:
    for rows, columns, norm in ((1, 32, True), (9, 96, False), (33, 288, True), (70, 2112, True), (2, 2112, False)):
        yield case(_norm, rows == 9, rows=rows, columns=columns, norm=norm)
    for rounds in ("coarse", "fine"):
        yield case(_norm, True, rows=5, columns=288, norm=True, rounds=rounds)
        yield case(_norm, False, rows=3, columns=2112, norm=False, rounds=rounds)
    for parts in (1, 4, 7):
        yield case(_norm, parts == 7, rows=3, columns=288, norm=True, parts=parts)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_norm, extreme == "nan", rows=3, columns=96, norm=True, extreme=extreme)


def _norm(
    lab: Lab,
    rows: int,
    columns: int,
    norm: bool,
    extreme: str = "",
    rounds: Literal["", "coarse", "fine"] = "",
    parts: int = 0,
) -> Outcome:
    """It rounds only on devices with subgroups; what it rounds is its own result. `parts`: partial sums of o."""
    scale, fine, writes = 0.7, rounds == "fine", bool(rounds) and lab.device.subgroup_size > 1
    h, o = (lab.activations(rows, columns, extreme=extreme) for _ in range(2))
    norms = lab.norms(2, columns)
    h_out, x = lab.out(rows * columns), lab.out(rows * columns)
    given, o, apart = pending(lab, o, parts)
    bindings = {"h": lab.put(h), "o": given, "norms": lab.put(norms), "h_out": h_out, "x": x}
    bindings["bytes"] = room = lab.out(byte_words(fine=fine) * (rows * columns // 32))
    constants = {"THREADS": THREADS, "NORM": norm, "PAIRS": pairs(columns), "ROUNDS": writes, "FINE": fine}
    params = {"blocks": columns // 32, "scale": scale, "eps": EPS, **apart}
    lab.run("norm", [rows], bindings, params, constants | {"PARTS": parts > 0})
    v, expected = twins.residual(h, o, norms, scale, EPS, norm=norm)
    values = lab.read(x)
    got: tuple[Array, ...] = (lab.read(h_out), values)
    wanted: tuple[Array, ...] = (framed(v), framed(expected))
    if writes:
        numbers = values[: rows * columns].astype(np.float32).reshape(rows, columns)
        rounded, right = rounded_outputs(lab, room, numbers, fine=fine)
        got, wanted = (*got, *rounded), (*wanted, *right)
    return Outcome(got, wanted, F32)


def pending(lab: Lab, o: Array, parts: int) -> tuple[Binding, Array, dict[str, float]]:
    """A block's output on the device, in so many partial sums; what it is, and the parameters for them."""
    if not parts:
        return lab.put(o), o, {}
    sums = np.stack([o, *(lab.normal(*o.shape) for _ in range(parts - 1))])
    return lab.put(sums), twins.wide(sums).sum(0), {"o_parts": parts, "o_step": o.size // 4}


def _ple_cases() -> Iterator[Case]:
    for rows, layers, p in ((1, 1, 32), (3, 5, 256), (33, 2, 96), (70, 3, 7)):
        yield case(_ple, rows == 3, rows=rows, layers=layers, p=p)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_ple, extreme == "nan", rows=3, layers=2, p=64, extreme=extreme)


def _ple(lab: Lab, rows: int, layers: int, p: int, extreme: str = "") -> Outcome:
    scale = 1536**-0.5
    c = lab.activations(rows, layers, p, extreme=extreme)
    table, norm = lab.normal(rows, layers, p), lab.norms(p)
    y = lab.out(c.size)
    bindings = {"c": lab.put(c), "table": lab.put(table), "norm": lab.put(norm), "ple": y}
    lab.run("ple", [layers, rows], bindings, {"p": p, "eps": EPS, "scale": scale}, {"THREADS": 64})
    return Outcome((lab.read(y),), (framed(twins.ple(c, table, norm, scale, EPS)),), F32)


def _mixture_cases() -> Iterator[Case]:
    """The norms around the experts."""
    for rows, columns in ((1, 32), (7, 96), (8, 288), (33, 2112)):
        yield case(_experts_norm, rows == 7, rows=rows, columns=columns)
        yield case(_experts_join, rows == 7, rows=rows, columns=columns, slots=1 + rows % 8)
    yield case(_experts_norm, True, rows=3, columns=288, parts=6)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_experts_norm, extreme == "nan", rows=3, columns=96, extreme=extreme)
        yield case(_experts_join, extreme == "nan", rows=3, columns=96, slots=2, extreme=extreme)


def _experts_norm(lab: Lab, rows: int, columns: int, extreme: str = "", parts: int = 0) -> Outcome:
    """The three inputs are an even number of rows apart. `parts` as for norm."""
    padded = rows + rows % 2
    h, o = (lab.activations(rows, columns, extreme=extreme) for _ in range(2))
    norms = lab.norms(4, columns)
    h_out, x = lab.out(rows * columns), lab.out(3 * padded * columns)
    given, o, apart = pending(lab, o, parts)
    bindings = {"h": lab.put(h), "o": given, "norms": lab.put(norms), "h_out": h_out, "x": x}
    params = {"blocks": columns // 32, "rows": padded, "eps": EPS, **apart}
    lab.run("experts_norm", [rows], bindings, params, norm_constants(columns) | {"PARTS": parts > 0})
    v, inputs = twins.experts_norm(h, o, norms, EPS)
    expected = untouched(3, padded, columns)
    expected[:, :rows] = inputs
    return Outcome((lab.read(h_out), lab.read(x)), (framed(v), framed(expected)), F32)


def _experts_join(lab: Lab, rows: int, columns: int, slots: int, extreme: str = "") -> Outcome:
    dense = lab.activations(rows, columns, extreme=extreme)
    routed = lab.activations(rows, slots, columns, extreme=extreme)
    norms, y = lab.norms(2, columns), lab.out(rows * columns)
    bindings = {"dense": lab.put(dense), "routed": lab.put(routed), "norms": lab.put(norms), "y": y}
    params = {"blocks": columns // 32, "slots": slots, "eps": EPS}
    lab.run("experts_join", [rows], bindings, params, norm_constants(columns))
    return Outcome((lab.read(y),), (framed(twins.experts_join(dense, routed, norms, EPS)),), F32)


def _activate_cases() -> Iterator[Case]:
    shapes = [(1, 1), (2, 7), (9, 255), (33, 256), (70, 300)]
    for mode in ("GEGLU", "APART", "SIDE"):
        for rows, n in shapes:
            yield case(_activate, rows == 9, rows=rows, n=n, mode=mode)
        for extreme in ("zeros", "huge", "nan"):
            yield case(_activate, extreme == "nan", rows=3, n=33, mode=mode, extreme=extreme)


def _activate(lab: Lab, rows: int, n: int, mode: str, extreme: str = "") -> Outcome:
    x = lab.activations(rows, n if mode == "SIDE" else 2 * n, extreme=extreme)
    side, y = lab.normal(rows, n + 9), lab.out(rows * n)
    bindings = {"x": lab.put(x), "side": lab.put(side), "y": y}
    params = {"n": n, **({"side_stride": n + 9, "side_offset": 4} if mode == "SIDE" else {})}
    lab.run("activate", [-(-n // 256), rows], bindings, params, {mode: True})
    if mode == "SIDE":
        expected = twins.gated(x, side[:, 4 : 4 + n])
    else:
        expected = twins.geglu(x) if mode == "GEGLU" else twins.apart(x)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _route_cases() -> Iterator[Case]:
    shapes = [(1, 1, 1), (2, 8, 2), (9, 64, 8), (33, 128, 8), (3, 130, 4), (2, 201, 201), (70, 1024, 8)]
    for rows, experts, used in shapes:
        yield case(_route, rows == 33, rows=rows, experts=experts, used=used)
    for extreme in ("zeros", "huge", "nan", "ties"):
        yield case(_route, extreme == "ties", rows=3, experts=128, used=8, extreme=extreme)
    yield case(_route, True, rows=3, experts=5, used=5, extreme="nan")  # all must be chosen


def _route(lab: Lab, rows: int, experts: int, used: int, extreme: str = "") -> Outcome:
    scores = lab.activations(rows, experts, extreme=extreme)
    if extreme == "ties":
        scores = np.round(scores)
    scale = lab.norms(experts)
    chosen, weights = lab.out(rows * used), lab.out(rows * used)
    bindings = {"scores": lab.put(scores), "expert_scale": lab.put(scale), "chosen": chosen, "weights": weights}
    lab.run("route", [rows], bindings, {"experts": experts, "used": used})
    right, shares = twins.route(scores, scale, used)
    return Outcome((lab.read(chosen, "<u4"), lab.read(weights)), (framed(right), framed(shares)), F32)
