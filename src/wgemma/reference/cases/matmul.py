"""Cases of the matmuls for a few rows: matvec with everything fused before and after the product, experts (also with
direct), and adapters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding
from wgemma.model import adapters
from wgemma.model.forms import matvec_shape, pairs
from wgemma.model.matmul import Joined
from wgemma.model.planes import PLANES
from wgemma.model.rows import Row
from wgemma.model.weights import Matrix
from wgemma.reference import twins
from wgemma.reference.cases.stream import pending
from wgemma.reference.lab import (
    EPS,
    F32,
    THREADS,
    Case,
    Lab,
    Outcome,
    case,
    framed,
    takes,
    untouched,
    widths,
)
from wgemma.reference.twins import Array

OFFSET = 3  # of the results within a row of y
SIDE_OFFSET = 4
SLICES = 64  # blocks of x assumed to fit into workgroup memory
EIGHT_BITS, SIXTEEN_BITS = 127, 32639  # the largest integers matvec rounds to


def cases() -> Iterator[Case]:
    yield from _matvec_cases()
    yield from _mode_cases()
    yield from _joined_cases()
    yield from _expert_cases()
    yield from _low_cases()


def _matvec_cases() -> Iterator[Case]:
    """Every type with few and many lanes; K of one block, and of more than a slice."""
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
    for kind in (kind for kind, planes in PLANES.items() if planes.quick):
        for columns in widths(kind):
            quick = kind in ("Q2_K", "Q4_K", "Q6_K", "Q8_0", "IQ4_NL")
            yield case(_matvec, quick, kind=kind, rows=2, n=67, columns=columns, lanes=8, largest=EIGHT_BITS)
    for slices in (16, 48, 64):
        yield case(_matvec, False, kind="Q4_K", rows=2, n=67, columns=2304, lanes=16, slices=slices, source="norm")
    for columns in (256, 1024, 2304):
        options: dict[str, Any] = {"kind": "Q6_K", "rows": 2, "n": 67, "columns": columns, "depth": 2, "slices": 48}
        yield case(_matvec, columns == 1024, **options, lanes=8)
        yield case(_matvec, columns == 256, **options, lanes=16, largest=EIGHT_BITS, source="norm")


def _mode_cases() -> Iterator[Case]:
    """The steps matvec fuses before and after the product."""
    table: list[tuple[bool, str, int, int, int, dict[str, Any]]] = [
        (True, "Q4_0", 2, 33, 2112, {"source": "norm"}),
        (True, "Q4_0", 2, 33, 2112, {"source": "sum", "mode": "PLE", "parts": 6}),
        (True, "Q8_0", 3, 33, 288, {"source": "sum"}),
        (True, "Q4_0", 8, 130, 288, {"mode": "GEGLU"}),
        (True, "Q8_0", 2, 33, 96, {"mode": "PLE"}),
        (True, "Q4_K", 1, 130, 256, {"mode": "SOFTCAP"}),
        (True, "Q6_K", 7, 33, 768, {"mode": "SOFTCAP", "source": "norm"}),
        (False, "Q4_K", 7, 64, 2304, {"mode": "GEGLU", "source": "norm", "most": 22, "lanes": 32}),
        (False, "F16", 8, 7, 32, {"mode": "PLE", "source": "sum", "most": 3}),
        (False, "Q5_0", 8, 64, 1056, {"mode": "SOFTCAP", "source": "norm", "most": 31, "lanes": 32}),
        (False, "Q6_K", 1, 7, 256, {"mode": "SOFTCAP", "source": "norm", "cap": 0.0}),
        (False, "Q8_0", 3, 2, 96, {"mode": "GEGLU", "source": "norm"}),
        (True, "Q4_0", 2, 130, 288, {"low": "apart"}),
        (True, "Q8_0", 3, 34, 96, {"low": "alternate", "mode": "GEGLU"}),
        (False, "Q4_K", 8, 130, 768, {"low": "alternate", "mode": "GEGLU", "most": 22, "lanes": 16}),
        (False, "Q6_K", 2, 33, 256, {"low": "apart", "mode": "PLE", "lanes": 4}),
        (False, "Q5_0", 1, 130, 96, {"low": "apart", "mode": "SOFTCAP", "most": 31}),
        (True, "Q4_0", 2, 67, 288, {"low": "apart", "shares": 3}),
        (True, "Q4_K", 2, 130, 768, {"low": "apart", "meets": True, "shares": 3, "largest": EIGHT_BITS}),
        (True, "Q8_0", 3, 34, 2112, {"low": "alternate", "meets": True, "source": "norm", "mode": "GEGLU"}),
        (False, "Q6_K", 2, 33, 256, {"low": "apart", "meets": True, "source": "sum", "mode": "PLE", "lanes": 4}),
        (False, "Q5_0", 8, 130, 96, {"low": "apart", "meets": True, "source": "norm", "shares": 2, "most": 31}),
        (False, "Q4_0", 3, 64, 288, {"low": "apart", "meets": True, "extreme": "zeros"}),
        (False, "Q4_0", 3, 64, 288, {"low": "apart", "meets": True, "extreme": "nan"}),
        (True, "Q4_K", 1, 130, 768, {"source": "norm", "largest": EIGHT_BITS, "lanes": 16, "mode": "GEGLU"}),
        (False, "Q6_K", 2, 130, 2304, {"source": "norm", "largest": EIGHT_BITS, "lanes": 32}),
        (False, "Q4_0", 3, 33, 96, {"largest": EIGHT_BITS, "extreme": "nan"}),
        (False, "Q5_K", 3, 33, 256, {"largest": EIGHT_BITS, "extreme": "zeros"}),
        (True, "Q4_K", 1, 130, 768, {"source": "norm", "largest": SIXTEEN_BITS, "lanes": 16}),
        (False, "Q8_0", 2, 33, 96, {"largest": SIXTEEN_BITS, "extreme": "huge"}),
        (False, "Q6_K", 3, 64, 512, {"largest": SIXTEEN_BITS}),
    ]
    for quick, kind, rows, n, columns, options in table:
        yield case(_matvec, quick, kind=kind, rows=rows, n=n, columns=columns, **{"lanes": 8, **options})
    for extreme in ("zeros", "huge", "nan"):
        for mode, source in (("GEGLU", "norm"), ("PLE", "sum"), ("SOFTCAP", "norm")):
            options = {"mode": mode, "source": source, "extreme": extreme}
            yield case(_matvec, False, kind="Q8_0", rows=3, n=34, columns=96, lanes=8, **options)


def _shared_out(
    lab: Lab, matrix: Matrix, lanes: int, slices: int = SLICES, *, depth: int = 1, largest: int = 0
) -> dict[str, Any]:
    """matvec.wgsl's constants; a few lanes fit any subgroup, so both ways of adding up are tested everywhere."""
    constants = matvec_shape(lab.device, matrix, lanes, depth, slices) | {"PAIRS": pairs(matrix.columns)}
    return constants | ({"QUICK": True, "FINE": largest == SIXTEEN_BITS} if largest else {})


def _fewer(threads: int) -> int:
    """Half the workgroups the rows would fill, so that each must loop over more rows."""
    return max(1, -(-threads // (2 * THREADS)) // 2)


@dataclass(frozen=True, slots=True)
class Matvec:
    kind: str
    rows: int
    n: int
    columns: int
    lanes: int
    mode: str = ""
    source: str = ""  # x itself, or the residual stream's norm or sum
    most: int = 0  # rows per part
    extreme: str = ""
    cap: float = 3.0
    low: str = ""  # the layout of an adapter's targets, if there is one
    shares: int = 1  # partial sums of z
    meets: bool = False  # computes z on the fly, if the device can
    slices: int = SLICES
    depth: int = 1
    largest: int = 0  # integer x is rounded to, if the device can
    parts: int = 0  # partial sums that o of the residual stream is in


@takes(Matvec)
def _matvec(lab: Lab, asked: Matvec) -> Outcome:
    rows, n, columns, mode, source = asked.rows, asked.n, asked.columns, asked.mode, asked.source
    largest = asked.largest if lab.device.subgroup_size > 1 else 0
    if asked.meets and not adapters.meets(lab.device):
        source = ""  # the kernel that computed z also computed x
    matrix, w = lab.weights(asked.kind, n, columns, asked.most)
    width = n // 2 if mode == "GEGLU" else n
    stride, side_stride = width + 5, n + 9
    scale, side, y = 0.7, lab.normal(rows, side_stride), lab.out(rows * stride)
    bindings: dict[str, Binding] = {"side": lab.put(side), "y": y}
    apart: dict[str, float] = {}
    x, v = lab.activations(rows, columns, extreme=asked.extreme), untouched(rows, columns)
    h_out = lab.out(x.size)
    if source:
        o, norms = lab.activations(rows, columns, extreme=asked.extreme), lab.norms(2, columns)
        given, o, apart = pending(lab, o, asked.parts)
        bindings |= {"h": lab.put(x), "o": given, "norms": lab.put(norms), "h_out": h_out}
        v, x = twins.residual(x, o, norms, scale, EPS, norm=source == "norm")
    else:
        bindings["x"] = lab.put(x)
    constants = _shared_out(lab, matrix, asked.lanes, asked.slices, depth=asked.depth, largest=largest)
    constants |= {"MADE": "residual" if source else "", "NORM": source == "norm", "PARTS": bool(apart)}
    constants |= {mode: True} if mode else {}
    adapter = _Adapter(lab, rows, n, asked.low, asked.shares, x if asked.meets else None, made=bool(source))
    constants |= {"LOW": bool(asked.low), "SHARES": asked.shares, "MEETS": adapter.makers > 0, "AHEAD": 2}
    bindings |= adapter.bindings
    for part in matrix.parts:
        first = part.first // 2 if mode == "GEGLU" else part.first
        params: dict[str, float] = {"blocks": matrix.blocks, "n": part.rows, **adapter.params(part.first)}
        params |= {"y_stride": stride, "y_offset": OFFSET + first}
        params |= {"scale": scale, "eps": EPS, **apart} if source else {}
        params |= {"cap": asked.cap} if mode == "SOFTCAP" else {}
        params |= {"side_stride": side_stride, "side_offset": SIDE_OFFSET + first} if mode == "PLE" else {}
        makers = 0 if part.first else adapter.makers
        grid = [makers + _fewer(part.rows * asked.lanes), rows]
        lab.run("matvec", grid, {**part.bindings(), **bindings}, params, constants)
    result = twins.linear(w, twins.rounded(x, largest) if largest else x) + adapter.adds
    expected = untouched(rows, stride)
    expected[:, OFFSET : OFFSET + width] = _finished(result, mode, side[:, SIDE_OFFSET : SIDE_OFFSET + n], asked.cap)
    made, wanted = adapter.made()
    return Outcome((lab.read(y), lab.read(h_out), *made), (framed(expected), framed(v), *wanted), F32)


def _joined_cases() -> Iterator[Case]:
    """Inputs in splits of a history: heads larger and smaller than a thread's share, an empty split."""
    yield case(_joined, True, "matvec", kind="Q4_K", rows=1, n=67, heads=3, head=256, splits=4)
    yield case(_joined, False, "matvec", kind="Q8_0", rows=3, n=33, heads=5, head=32, splits=3)
    yield case(_joined, False, "matvec", kind="Q6_K", rows=2, n=64, heads=4, head=64, splits=2)
    yield case(_joined, True, "matvec", kind="Q4_0", rows=2, n=64, heads=3, head=64, splits=2, low="apart")


def _joined(lab: Lab, kind: str, rows: int, n: int, heads: int, head: int, splits: int, low: str = "") -> Outcome:
    matrix, w = lab.weights(kind, n, heads * head)
    joined, x = _pieces(lab, rows, heads, head, splits)
    y = lab.out(rows * n)
    constants = matvec_shape(lab.device, matrix, 8, 1, 64) | joined.constants(matrix.columns)
    (part,) = matrix.parts
    bindings: dict[str, Binding] = {**part.bindings(), **joined.bindings(), "y": y}
    adapter = _Adapter(lab, rows, n, low, 1, x if low else None, made=True)
    constants |= {"LOW": bool(low), "SHARES": 1, "MEETS": adapter.makers > 0}
    params = {"blocks": matrix.blocks, "n": n, "y_stride": n, "y_offset": 0, **joined.params(rows, EPS)}
    params |= adapter.params()
    grid = [adapter.makers + _fewer(n * 8), rows]
    lab.run("matvec", grid, {**bindings, **adapter.bindings}, params, constants)
    made, wanted = adapter.made()
    return Outcome((lab.read(y), *made), (framed(twins.linear(w, x) + adapter.adds), *wanted), F32)


def _pieces(lab: Lab, rows: int, heads: int, head: int, splits: int) -> tuple[Joined, Array]:
    """An input in pieces, and their join."""
    outs, ends = lab.normal(rows, heads, splits, head), np.abs(lab.normal(rows, heads, splits, 2)) + 0.5
    ends[0, 0, 0] = -3.0e38, 0.0  # an empty split
    outs[0, 0, 0] = 0.0
    partial, x = lab.put(np.concatenate([outs.ravel(), ends.ravel()])), lab.out(rows * heads * head)
    return Joined(partial, x, heads, head, splits), twins.attention_join(outs, ends).reshape(rows, -1)


class _Adapter:
    """A random adapter on n results of each row, from FIRST on in a group. Its targets lie one after another ("apart")
    or interleaved ("alternate"); with neither there is no adapter. z is in `shares` partial sums, and belongs to the
    input x if one is given: `makers` workgroups then compute it, if the device can."""

    FIRST, RANK = 4, 19

    def __init__(
        self, lab: Lab, rows: int, n: int, how: str, shares: int = 1, x: Array | None = None, *, made: bool = False
    ) -> None:
        self.lab, self.how, count, width = lab, how, 2 if how == "alternate" else 3, n + 9
        self.edges = (self.FIRST + n // 3, self.FIRST + n // 2)
        z, b = lab.normal(rows, count, self.RANK, shares), lab.normal(self.RANK, width)
        self.bindings: dict[str, Binding] = {"z": lab.put(z), "b": lab.put(b)}
        self.makers = 0
        if x is not None:
            columns = count * self.RANK
            a, scales = lab.normal(columns, x.shape[1], scale=x.shape[1] ** -0.5), lab.normal(columns)
            self.z = twins.low_project(a, x, scales, shares, made=made)
            z = self.z.reshape(z.shape)
            self.bindings["z"] = self.room = lab.put(z)
            if adapters.meets(lab.device):
                self.makers = columns * (1 if made else shares)
                self.room = lab.held(np.zeros(z.shape))
                self.bindings |= {"z": self.room, "a": lab.put(a), "low_scales": lab.put(scales)}
        self.shape = {"rank": self.RANK * shares, "z_stride": count * self.RANK * shares, "b_stride": width}
        at = self.FIRST + np.arange(n)
        apart = (at >= self.edges[0]).astype(np.int64) + (at >= self.edges[1])
        self.adds: Array = np.zeros((rows, n))
        if how:
            self.adds = twins.low(twins.wide(z).sum(-1), b[:, at], at % 2 if how == "alternate" else apart)

    def params(self, first: int = 0) -> dict[str, int]:
        if not self.how:
            return {}
        edge1, edge2 = self.edges
        place = {"low_first": self.FIRST + first, "edge1": edge1, "edge2": edge2, "alternate": self.how == "alternate"}
        return {**self.shape, **place, **({"makers": 0 if first else self.makers} if self.makers else {})}

    def made(self) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """The computed z, if any, and the expected one."""
        return ((self.lab.read(self.room),), (framed(self.z),)) if self.makers else ((), ())


def _finished(y: Array, mode: str, side: Array, cap: float) -> Array:
    if mode == "GEGLU":
        return twins.geglu(y)
    if mode == "PLE":
        return twins.gated(y, side)
    return twins.capped(y, cap) if mode == "SOFTCAP" else y


def _expert_cases() -> Iterator[Case]:
    """With experts_matvec.wgsl, named like matvec's cases, and with direct.wgsl."""
    for made in _experts_by_matvec():
        yield replace(made, kernel="experts_matvec")
    for kind in PLANES:
        narrow, middling, _ = widths(kind)
        options = {"geglu": True, "by": "direct"}
        yield case(_experts, kind == "Q5_0", "direct", kind=kind, rows=3, n=10, columns=middling, **options)
        options = {"weighted": True, "by": "direct"}
        yield case(_experts, kind == "Q8_0", "direct", kind=kind, rows=7, n=70, columns=narrow, **options)


def _experts_by_matvec() -> Iterator[Case]:
    for kind in PLANES:
        narrow, middling, _ = widths(kind)
        yield case(_experts, True, "matvec", kind=kind, rows=3, n=10, columns=middling, geglu=True)
        yield case(_experts, False, "matvec", kind=kind, rows=7, n=33, columns=narrow, weighted=True)
    yield case(_experts, False, "matvec", kind="Q8_0", rows=2, n=64, columns=1056, lanes=32)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_experts, False, "matvec", kind="Q8_0", rows=3, n=10, columns=288, geglu=True, extreme=extreme)


@dataclass(frozen=True, slots=True)
class Experts:
    kind: str
    rows: int
    n: int
    columns: int
    geglu: bool = False
    weighted: bool = False
    lanes: int = 8
    extreme: str = ""
    by: str = "experts_matvec"


@takes(Experts)
def _experts(lab: Lab, asked: Experts) -> Outcome:
    """Five experts in parts of two, three slots per row."""
    rows, n, columns, geglu, weighted = asked.rows, asked.n, asked.columns, asked.geglu, asked.weighted
    by = asked.by
    count, slots, together = 5, 3, 2
    matrix, w = lab.weights(asked.kind, count * n, columns, together * n)
    chosen = np.stack([lab.rng.permutation(count)[:slots] for _ in range(rows)])
    weights = lab.rng.uniform(0.1, 1, (rows, slots)).astype(np.float32)
    x = lab.activations(rows, *((slots,) if weighted else ()), columns, extreme=asked.extreme)
    width = n // 2 if geglu else n
    y = lab.out(rows * slots * width)
    bindings: dict[str, Binding] = {"x": lab.put(x), "chosen": lab.put(chosen, "<u4"), "weights": lab.put(weights)}
    constants = _shared_out(lab, matrix, asked.lanes) | {"GEGLU": geglu, "WEIGHTED": weighted}
    constants |= {"EXPERTS": True} if by == "direct" else {}
    for part in matrix.parts:
        params = {"blocks": matrix.blocks, "n": n, "slots": slots, **part.experts(n)}
        grid = [-(-width // 64) if by == "direct" else _fewer(n * asked.lanes), rows, slots]
        lab.run(by, grid, {**part.bindings(), **bindings, "y": y}, params, constants)
    result = twins.experts(w.reshape(count, n, columns), x, chosen, weights if weighted else None)
    return Outcome((lab.read(y),), (framed(twins.geglu(result) if geglu else result),), F32)


def _low_cases() -> Iterator[Case]:
    for low in ("apart", "alternate"):
        for rows, n in ((1, 7), (4, 64), (6, 130), (33, 65)):
            yield case(_low_add, rows == 6, rows=rows, n=n, low=low)
    yield case(_low_add, True, rows=5, n=70, low="apart", cap=3.0)
    yield case(_low_add, False, rows=5, n=70, low="apart", cap=3.0, extreme="nan")
    for source, columns in (("", 2112), ("", 96), ("", 13312), ("norm", 2112), ("sum", 288)):
        yield case(_low_project, columns != 96, rows=3, n=7, columns=columns, source=source)
    for source in ("", "norm"):
        yield case(_low_project, True, rows=2, n=5, columns=2144, source=source, shares=3)
        yield case(_low_project, True, rows=3, n=7, columns=288, source=source, own=True)
    yield case(_low_project, True, rows=2, n=5, columns=2816, source="", bare=True)
    yield case(_low_project, True, rows=2, n=5, columns=288, source="norm", parts=3)
    for rows, heads, head, splits in ((2, 9, 256, 4), (3, 5, 32, 3), (1, 64, 64, 2)):
        options = {"rows": rows, "heads": heads, "head": head, "splits": splits}
        yield case(_low_joined, splits == 4, "low_project", n=7, **options)
    yield case(_low_joined, False, "low_project", n=7, rows=3, heads=5, head=32, splits=2, own=True)
    for n, count in ((70, 2), (33, 1)):
        yield case(_low_experts, True, rows=3, n=n, count=count)
        yield case(_low_experts, count == 2, rows=3, n=n, count=count, own=True)
    yield case(_low_embed, True, columns=96)
    yield case(_low_embed, True, columns=96, own=True)
    yield case(_low_embed, False, columns=32)


def _low_add(lab: Lab, rows: int, n: int, low: str, cap: float | None = None, extreme: str = "") -> Outcome:
    stride, adapter = n + 5, _Adapter(lab, rows, n, low)
    before = lab.activations(rows, n, extreme=extreme)
    y, expected = untouched(rows, stride), untouched(rows, stride)
    y[:, OFFSET : OFFSET + n] = before
    room = lab.out(rows * stride)
    lab.device.write(room, 0, y.astype("<f4").tobytes())
    params: dict[str, float] = {"n": n, "rows": rows, "y_stride": stride, "y_offset": OFFSET, **adapter.params()}
    params |= {} if cap is None else {"cap": cap}
    grid = [-(-n // 64), -(-rows // 4)]
    lab.run("low_add", grid, {**adapter.bindings, "y": room}, params, {"SOFTCAP": cap is not None})
    expected[:, OFFSET : OFFSET + n] = twins.capped(twins.wide(before) + adapter.adds, cap or 0.0)
    return Outcome((lab.read(room),), (framed(expected),), F32)


def _low_project(
    lab: Lab,
    rows: int,
    n: int,
    columns: int,
    source: str,
    bare: bool = False,
    shares: int = 1,
    own: bool = False,
    parts: int = 0,
) -> Outcome:
    """`source` and `parts` as in matvec's cases; `bare` without scales; every row with its `own`."""
    a, x, scale = lab.normal(n, columns), lab.normal(rows, columns), 0.7
    scales, weighing, step = lab.scales(rows, n, own)
    v = kept = untouched(rows, columns)
    apart: dict[str, float] = {}
    h_out, x_out, z = lab.out(x.size), lab.out(x.size), lab.out(rows * n * shares)
    bindings: dict[str, Binding] = {"a": lab.put(a), "scales": weighing, "z": z, "h_out": h_out, "x_out": x_out}
    if source:
        norms = lab.norms(2, columns)
        given, o, apart = pending(lab, lab.normal(rows, columns), parts)
        bindings |= {"h": lab.put(x), "o": given, "norms": lab.put(norms)}
        v, x = twins.residual(x, o, norms, scale, EPS, norm=source == "norm")
        kept = x
    else:
        bindings["x"] = lab.put(x)
    constants = {"THREADS": THREADS, "MADE": "residual" if source else "", "NORM": source == "norm"}
    constants |= {"PAIRS": pairs(columns), "AHEAD": 2, "BARE": bare, "PARTS": parts > 0}
    grid = [n, rows] if source else [n, rows, shares]
    params: dict[str, float] = {"blocks": columns // 32, "shares": shares, **({} if bare else {"scale_step": step})}
    params |= {"scale": scale, "eps": EPS, **apart} if source else {}
    lab.run("low_project", grid, bindings, params, constants)
    expected = twins.low_project(a, x, np.ones(n) if bare else scales, shares, made=bool(source))
    written = (lab.read(z), lab.read(h_out), lab.read(x_out))
    return Outcome(written, (framed(expected), framed(v), framed(kept)), F32)


def _low_joined(lab: Lab, rows: int, n: int, heads: int, head: int, splits: int, own: bool = False) -> Outcome:
    columns = heads * head
    a, (scales, weighing, step), z = lab.normal(n, columns), lab.scales(rows, n, own), lab.out(rows * n)
    joined, x = _pieces(lab, rows, heads, head, splits)
    bindings: dict[str, Binding] = {"a": lab.put(a), "scales": weighing, "z": z, "x_out": joined.x}
    params = {"blocks": columns // 32, "shares": 1, "scale_step": step, **joined.params(rows, EPS)}
    constants = {"THREADS": THREADS, **joined.constants(columns)}
    lab.run("low_project", [n, rows], {**bindings, **joined.bindings()}, params, constants)
    expected = twins.linear(a, x) * twins.wide(scales)
    return Outcome((lab.read(z), lab.read(joined.x)), (framed(expected), framed(x)), F32)


def _low_experts(lab: Lab, rows: int, n: int, count: int, own: bool = False) -> Outcome:
    """Five experts, three slots per row; `count` targets, interleaved."""
    experts, slots, rank = 5, 3, 4
    chosen = np.stack([lab.rng.permutation(experts)[:slots] for _ in range(rows)])
    z, b = lab.normal(rows, slots, count, rank), lab.normal(experts, rank, n)
    scales, weighing, step = lab.scales(rows, count * rank, own)
    before, room = lab.normal(rows, slots, n), lab.out(rows * slots * n)
    lab.device.write(room, 0, before.astype("<f4").tobytes())
    bindings: dict[str, Binding] = {"z": lab.put(z), "b": lab.put(b), "scales": weighing, "y": room}
    bindings["chosen"] = lab.put(chosen, "<u4")
    params = {"n": n, "slots": slots, "rank": rank, "z_stride": count * rank, "alternate": count > 1}
    params["scale_step"] = step
    lab.run("low_experts", [-(-n // 64), rows, slots], bindings, params)
    expected = before + twins.low_experts(z, b, scales, chosen, np.arange(n) % count)
    return Outcome((lab.read(room),), (framed(expected),), F32)


def _low_embed(lab: Lab, columns: int, own: bool = False) -> Outcome:
    """Rows of tokens, and a soft row that must stay unchanged."""
    rank, vocab, tokens, soft = 5, 9, [3, 8, 0, 3], 1 << 30
    table, b = lab.normal(vocab, rank), lab.normal(rank, columns)
    scales, weighing, step = lab.scales(len(tokens), rank, own)
    before, room = lab.normal(len(tokens) + 1, columns), lab.out((len(tokens) + 1) * columns)
    lab.device.write(room, 0, before.astype("<f4").tobytes())
    rows = lab.put_rows([Row(1, 0, token) for token in (*tokens, soft)])
    bindings: dict[str, Binding] = {"table": lab.put(table), "b": lab.put(b), "scales": weighing}
    bindings |= {"rows": rows, "y": room}
    params = {"columns": columns, "rank": rank, "scale": 3.0, "scale_step": step}
    lab.run("low_embed", [-(-columns // 64), len(tokens) + 1], bindings, params)
    expected = twins.wide(before)
    expected[: len(tokens)] += twins.low_embed(table, b, scales, tokens, 3.0)
    return Outcome((lab.read(room),), (framed(expected),), F32)
