"""Cases of the kernels around the cache: kv, attention, attention_few, attention_join."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding, Buffer
from wgemma.model.attention import few_shape, heads_together, many_form, slices
from wgemma.model.forms import FEW
from wgemma.model.rotary import rotary_tables
from wgemma.model.rows import Row
from wgemma.reference import twins
from wgemma.reference.cases.tiles import byte_words, rounded_outputs
from wgemma.reference.lab import EPS, F32, GUARD, Case, Lab, Outcome, case, framed, takes, untouched
from wgemma.reference.paging import paged, seen_by
from wgemma.reference.twins import Array

# The twin does not round to f16: WGSL lets a device round either way, and both are within this. The cases with an f32
# cache check everything else about the kernel to F32.
F16 = 2.0**-10
EMPTY = -3.0e38  # the maximum of a split without keys


def cases() -> Iterator[Case]:
    yield from _kv_cases()
    yield from _attention_cases()
    yield from _attention_join_cases()


def _turns(lab: Lab, rows: Sequence[Row], head: int, pairs: int) -> tuple[Buffer, Array]:
    """The rotary table on the device, and its angles."""
    base, deepest = 10_000.0, max(row.position for row in rows)
    table = np.frombuffer(rotary_tables(base, head, pairs, None, deepest + 1), dtype="<f4")
    return lab.put(table), twins.angles([row.position for row in rows], base, head, pairs)


def _rows(
    positions: Sequence[int], unused: Sequence[int] = (), image: tuple[int, int] = (0, 0), whole: int = 0
) -> list[Row]:
    """Rows at these positions; rows of the image [start, end) see up to its end, and from its start if that is before a
    window of `whole`."""
    rows = []
    for r, t in enumerate(positions):
        inside = image[0] <= t < image[1]
        before = max(t + 1 - whole - image[0], 0) if inside and whole else 0
        rows.append(Row(0 if r in unused else 1 + before, t, 0, image[1] - 1 if inside else t))
    return rows


def _kv_cases() -> Iterator[Case]:
    sliding: dict[str, Any] = {"sliding": True}
    cut: dict[str, Any] = {"segments": 3}
    several: dict[str, Any] = {"several": True}
    table: list[tuple[bool, int, int, tuple[int, ...], dict[str, Any]]] = [
        (True, 32, 1, (0,), sliding),
        (True, 64, 2, (62, 63, 64, 65, 0, 2), {**sliding, "unused": (4,)}),
        (True, 256, 2, (15, 16, 63, 64, 127, 128), cut),
        (True, 64, 1, (7, 300, 5, 7, 64, 0), {**several, **cut, "unused": (2,)}),
        (False, 128, 4, tuple(range(40, 73)), {**cut, "own_v": False}),
        (False, 512, 1, (63, 64), {**cut, "pairs": 64}),
        (False, 256, 1, (131_071, 100_000, 77_777), {**several, **sliding, "pairs": 32}),
        (False, 64, 1, tuple(range(70, 134)), {**sliding, "own_v": False}),
        (False, 32, 2, tuple(range(0, 640, 10)), {**several, "unused": (0, 63)}),
    ]
    for quick, head, heads, positions, options in table:
        for f16 in (True, False):
            yield case(_kv, quick, head=head, kv_heads=heads, f16=f16, positions=positions, **options)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_kv, False, head=64, kv_heads=2, f16=False, positions=(5, 6, 7), extreme=extreme)


@dataclass(frozen=True, slots=True)
class Kv:
    head: int
    kv_heads: int
    f16: bool
    positions: Sequence[int]
    sliding: bool = False
    several: bool = False
    segments: int = 1
    unused: Sequence[int] = ()
    pairs: int = 0
    own_v: bool = True
    extreme: str = ""


@takes(Kv)
def _kv(lab: Lab, asked: Kv) -> Outcome:
    """Keys and values after each row's queries; places no row writes stay unchanged."""
    head, kv_heads, f16, own_v = asked.head, asked.kv_heads, asked.f16, asked.own_v
    rows, pairs = _rows(asked.positions, asked.unused), asked.pairs or head // 2
    spans = [range(row.position, row.position + 1) if row.used else range(0) for row in rows]
    pages = paged(lab, rows, spans, several=asked.several, sliding=asked.sliding, segments=asked.segments)
    width = kv_heads * head
    stride, offset = 3 + 2 * width, 3
    raw = lab.activations(len(rows), stride, extreme=asked.extreme)
    k_raw, v_raw = (raw[:, at : at + width].reshape(-1, kv_heads, head) for at in (offset, offset + width))
    norm, (turns, angles) = lab.norms(head), _turns(lab, rows, head, pairs)
    constants = {"HEAD": head, "PAIRS": pairs, "PAIR": "u32" if f16 else "vec2<f32>", "F16_CACHE": f16}
    constants |= {"OWN_V": own_v, "THREADS": 64}
    given = lab.put(raw)
    bindings = {"rows": pages.rows, "k_raw": given, "v_raw": given, "norm": lab.put(norm), "turns": turns}
    expected = untouched(2, pages.places, kv_heads, head)
    made = twins.kv(k_raw, v_raw if own_v else k_raw, norm, angles, EPS)
    for r, row in enumerate(rows):
        if row.used:
            expected[:, twins.places(np.array(row.position), pages.tables[r])] = made[0][r], made[1][r]
    got, wanted = [], []
    for first, count in pages.segments:
        caches = [lab.out(count * width // (2 if f16 else 1)) for _ in range(2)]
        params = {"kv_heads": kv_heads, "stride": stride, "eps": EPS, **pages.params, "first": first, "count": count}
        params |= {"k_offset": offset, "v_offset": offset + (width if own_v else 0)}
        lab.run("kv", [kv_heads, len(rows)], {**bindings, "keys": caches[0], "values": caches[1]}, params, constants)
        got += [lab.read(cache, "<f2" if f16 else "<f4") for cache in caches]
        wanted += [framed(half[first : first + count]) for half in expected]
    return Outcome(tuple(got), tuple(wanted), F16 if f16 else F32)


def _attention_cases() -> Iterator[Case]:
    edges = (0, 1, 14, 15, 16, 17, 62, 63, 64, 65, 127, 128, 500)
    sliding: dict[str, Any] = {"window": 16}
    far: dict[str, Any] = {"window": 200}
    full: dict[str, Any] = {}
    cut: dict[str, Any] = {"segments": 3}
    several: dict[str, Any] = {"several": True}
    table: list[tuple[bool, int, int, int, tuple[int, ...], dict[str, Any]]] = [
        (True, 32, 4, 2, edges, sliding),
        (True, 64, 4, 4, (40, 41, 42, 43, 44, 45), {**sliding, "image": (41, 45), "unused": (5,)}),
        (True, 256, 8, 1, (0, 127, 128, 300, 511), full),
        (True, 64, 6, 3, (0, 255, 256, 383, 384, 500, 639), {**cut, "splits": 4, "unused": (2,)}),
        (False, 128, 8, 2, (199, 200, 201, 511, 512, 700, 1300), far),
        (False, 128, 4, 1, (600, 601, 650, 699), {**far, "image": (601, 700)}),
        (True, 64, 4, 2, (40, 41, 60, 79, 80), {**sliding, "image": (41, 80), "whole": True}),
        (False, 128, 4, 1, (300, 301, 550, 699), {**far, "image": (301, 700), "whole": True}),
        (True, 64, 4, 1, (0, 50, 199, 200, 450, 700), {**far, "splits": 4, "unused": (4,)}),
        (False, 256, 2, 1, (600, 650, 699), {**far, "splits": 3, "image": (601, 700)}),
        (False, 512, 8, 1, (639,), {**cut, "splits": 5, "pairs": 64}),
        (False, 512, 2, 2, (100, 383), {**cut, "pairs": 64}),
        (False, 256, 4, 2, (5, 300, 511), {**full, "splits": 32}),
        (False, 128, 2, 1, tuple(range(230, 300)), {**cut, "unused": (3, 69)}),
        (False, 64, 2, 1, tuple(range(33)), {**sliding, "unused": (32,)}),
        (False, 32, 4, 4, (3, 600), {**cut, "splits": 3}),
        (True, 64, 4, 2, (5, 300, 64, 0, 200, 63), {**several, "unused": (3,)}),
        (True, 64, 4, 2, (130, 5, 400, 131), {**several, **far, **cut, "splits": 2}),
        (False, 256, 4, 1, (700, 201, 13), {**several, **far, "splits": 2}),
        (False, 32, 2, 2, (500, 70, 300), {**several, **cut, "splits": 3, "unused": (1,)}),
        (False, 128, 2, 1, tuple(range(0, 640, 10)), {**several, "unused": (63,)}),
        (False, 64, 4, 2, (40, 60, 79, 80), {**sliding, **cut, "image": (41, 80), "whole": True}),
        (True, 512, 2, 1, (300, 20, 64), {**several, **far, **cut, "pairs": 64}),
    ]
    for quick, head, heads, kv_heads, positions, options in table:
        for f16 in (True, False):
            shape: dict[str, Any] = {"head": head, "heads": heads, "kv_heads": kv_heads, "f16": f16}
            shape |= {"positions": positions, **options}
            yield case(_attention, quick and (f16 or head == 64), **shape)
            if len(positions) <= FEW or "several" in options:
                yield case(_attention, quick and f16 and head in (64, 512), "attention_few", **shape, together=1)
    shared: list[tuple[bool, int, int, dict[str, Any]]] = [
        (True, 32, 1, {**cut, "splits": 2, "together": 4}),
        (True, 64, 2, {**far, "together": 2}),
        (False, 256, 1, {**far, "together": 4}),
        (False, 512, 1, {**cut, "pairs": 64, "splits": 3, "together": 4}),
        (False, 512, 2, {**cut, "pairs": 64, "together": 2}),
        (True, 64, 1, {**several, **far, **cut, "together": 4}),
        (False, 256, 2, {**several, "splits": 2, "together": 2}),
    ]
    for quick, head, kv_heads, options in shared:
        for f16 in (True, False) if head < 512 else (True,):  # four such heads in f32 take twelve seconds to compile
            shape = {"head": head, "heads": 4, "kv_heads": kv_heads, "f16": f16, "positions": (7, 300, 600)}
            yield case(_attention, quick and f16, "attention_few", **shape, **options)
    for extreme in ("zeros", "huge", "nan"):
        shape = {"head": 64, "heads": 4, "kv_heads": 2, "f16": True, "positions": (7, 200, 300)}
        for together in (0, 1):
            kernel = "attention_few" if together else "attention"
            shape |= {"together": together, "extreme": extreme}
            yield case(_attention, False, kernel, **shape, **full)
            yield case(_attention, extreme == "nan", kernel, **shape, **cut, splits=2)


@dataclass(frozen=True, slots=True)
class Attention:
    head: int
    heads: int
    kv_heads: int
    f16: bool
    positions: Sequence[int]
    several: bool = False
    segments: int = 1
    window: int = 0
    image: tuple[int, int] = (0, 0)
    whole: bool = False
    unused: Sequence[int] = ()
    splits: int = 1
    pairs: int = 0
    together: int = 0  # heads per workgroup of attention_few.wgsl, if memory allows; 0 means attention.wgsl
    extreme: str = ""


@takes(Attention)
def _attention(lab: Lab, asked: Attention) -> Outcome:
    """With one split, `partial` only carries state between segments; several are joined by attention_join."""
    head, heads, f16, window, splits = asked.head, asked.heads, asked.f16, asked.window, asked.splits
    together = heads_together(lab.device, head, asked.together) if asked.together else 0
    rows = _rows(asked.positions, asked.unused, asked.image, window if asked.whole else 0)
    spans = [seen_by(row, window) for row in rows]
    pages = paged(lab, rows, spans, several=asked.several, sliding=window > 0, segments=asked.segments)
    pairs, cache = asked.pairs or head // 2, pages.cache(lab, asked.kv_heads, head, f16=f16)
    stride = heads * head + 7
    raw = lab.activations(len(rows), stride, extreme=asked.extreme)
    norm, (turns, angles) = 0.2 * lab.norms(head), _turns(lab, rows, head, pairs)
    states, out = lab.out(len(rows) * heads * splits * (head + 2)), lab.out(len(rows) * heads * head)
    bindings: dict[str, Binding] = {"rows": pages.rows, "q_raw": lab.put(raw), "norm": lab.put(norm)}
    bindings |= {"turns": turns, "partial": states, "out": out}
    constants = {"HEAD": head, "PAIRS": pairs, "WORD": "vec4<u32>" if f16 else "vec4<f32>", "F16_CACHE": f16}
    form = few_shape(head, together, lab.device.subgroup_size, f16=f16) if together else many_form(lab.device, f16=f16)
    constants |= {"PER_WORD": 8 if f16 else 4, "SEGMENTED": asked.segments > 1, **form}
    kernel, grid = "attention_few" if together else "attention", [heads // (together or 1), len(rows), splits]
    for i, (first, count) in enumerate(pages.segments):
        part = cache[:, first : first + count]
        keys, values = (lab.put(half, "<f2" if f16 else "<f4") for half in (twins.paired(part[0]), part[1]))
        params = {"heads": heads, "kv_heads": asked.kv_heads, "stride": stride, "window": window, "eps": EPS}
        params |= {**pages.params, "first": first, "count": count, "splits": splits}
        params |= {"resumes": i > 0, "final_segment": i == asked.segments - 1}
        lab.run(kernel, grid, {**bindings, "keys": keys, "values": values}, params, constants)
    if splits > 1:
        lab.run("attention_join", [heads, len(rows), slices(head)], bindings, {"splits": splits}, {"HEAD": head})
    q = twins.turned(raw[:, : heads * head].reshape(-1, heads, head), norm, angles, EPS)
    expected = twins.attention(q, cache[0], cache[1], rows, window, pages.tables)
    carried = lab.read(states)
    alone = splits == 1 and asked.segments == 1
    margin = untouched(carried.size if alone else GUARD)
    return Outcome((lab.read(out), carried[carried.size - margin.size :]), (framed(expected), margin), F32)


def _attention_join_cases() -> Iterator[Case]:
    shapes = ((1, 8, 512, 64), (3, 4, 64, 2), (9, 1, 32, 1), (8, 2, 256, 7), (1, 3, 128, 5), (2, 1, 32, 200))
    for rows, heads, head, splits in shapes:
        yield case(_attention_join, rows in (2, 3), rows=rows, heads=heads, head=head, splits=splits)
    yield case(_attention_join, False, rows=3, heads=2, head=64, splits=4, extreme="nan")
    for head in (32, 64, 256):
        for fine in (False, True):
            yield case(_attention_join, head == 256, rows=3, heads=2, head=head, splits=3, rounds=True, fine=fine)


def _attention_join(
    lab: Lab,
    rows: int,
    heads: int,
    head: int,
    splits: int,
    extreme: str = "",
    rounds: bool = False,
    fine: bool = False,
) -> Outcome:
    """Some splits are empty; in the last row all are. What it `rounds` is what it finds without."""
    outs = lab.activations(rows, heads, splits, head, extreme=extreme)
    states = lab.normal(rows, heads, splits, 2)
    states[..., 0] *= 5
    states[..., 1] = 1 + np.abs(states[..., 1])
    empty = lab.rng.random((rows, heads, splits)) < 0.3
    empty[:, :, 0] = False
    empty[-1] = rows > 1
    outs[empty], states[empty] = 0, (EMPTY, 0)
    out = lab.out(rows * heads * head)
    bindings = {"partial": lab.put(np.concatenate([outs.ravel(), states.ravel()])), "out": out}
    lab.run("attention_join", [heads, rows, slices(head)], bindings, {"splits": splits}, {"HEAD": head})
    values, expected = lab.read(out), framed(twins.attention_join(outs, states))
    if not rounds:
        return Outcome((values,), (expected,), F32)
    bindings["bytes"] = room = lab.out(rows * heads * head // 32 * byte_words(fine=fine))
    constants = {"HEAD": head, "ROUNDS": True, "FINE": fine}
    lab.run("attention_join", [heads, rows, slices(head)], bindings, {"splits": splits}, constants)
    numbers = values[: rows * heads * head].astype(np.float32).reshape(rows, heads * head)
    rounded, right = rounded_outputs(lab, room, numbers, fine=fine)
    return Outcome((values, *rounded), (expected, *right), F32)
