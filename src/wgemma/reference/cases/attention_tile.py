"""Cases of attention for many rows: queries, attention_tile, attention_direct."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wgemma.gpu.device import Binding, Buffer
from wgemma.model.attention import slices
from wgemma.model.attention_tile import QUERIES, direct_form, split_of, tile_shape
from wgemma.model.rotary import rotary_tables
from wgemma.model.rows import Row
from wgemma.reference import attention_back_twins as back
from wgemma.reference import twins
from wgemma.reference.lab import EPS, F32, GUARD, Case, Lab, Outcome, case, framed, takes, untouched
from wgemma.reference.paging import paged, seen_by
from wgemma.reference.twins import Array

BASE = 10_000.0
UNUSED = 0  # in a table of sequences: one unused row

Options = dict[str, Any]


def cases() -> Iterator[Case]:
    table: list[tuple[int, int, tuple[int, ...], Options]] = [
        (64, 3, (0, 1, 255, 256, 300), {}),
        (256, 2, (131_071, 7), {}),
        (512, 1, (9,), {"pairs": 64}),
        (24, 2, (3, 4), {"pairs": 3}),
    ]
    for head, heads, positions, options in table:
        yield case(_queries, head == 64, head=head, heads=heads, positions=positions, **options)
    for extreme in ("zeros", "huge", "nan"):
        yield case(_queries, False, head=64, heads=2, positions=(5, 6, 7), extreme=extreme)
    yield from _tile_cases()
    yield from _direct_cases()
    yield from _packed_cases()


def _queries(lab: Lab, head: int, heads: int, positions: Sequence[int], pairs: int = 0, extreme: str = "") -> Outcome:
    rows, stride, pairs = [Row(1, t) for t in positions], heads * head + 7, pairs or head // 2
    raw, norm = lab.activations(len(rows), stride, extreme=extreme), lab.norms(head)
    table = np.frombuffer(rotary_tables(BASE, head, pairs, None, max(positions) + 1), dtype="<f4")
    q = lab.out(len(rows) * heads * head)
    bindings: dict[str, Binding] = {"rows": lab.put_rows(rows), "q_raw": lab.put(raw), "norm": lab.put(norm)}
    bindings |= {"turns": lab.put(table), "q": q}
    constants = {"HEAD": head, "PAIRS": pairs, "THREADS": 64}
    lab.run("queries", [heads, len(rows)], bindings, {"stride": stride, "eps": EPS}, constants)
    angles = twins.angles(positions, BASE, head, pairs)
    expected = twins.paired(twins.turned(raw[:, : heads * head].reshape(-1, heads, head), norm, angles, EPS))
    return Outcome((lab.read(q),), (framed(expected),), F32)


def _tile_cases() -> Iterator[Case]:
    sliding: Options = {"window": 16}
    far: Options = {"window": 200}
    cut: Options = {"segments": 3}
    ends = (0, 255, 256, 383, 384, 500, 639)
    # The fewest pipelines that cover every form: a software adapter compiles them more slowly than it runs them.
    table: list[tuple[bool, int, int, int, bool, tuple[int, ...], Options]] = [
        (True, 256, 8, 1, True, tuple(range(38, 50)), {**sliding, "image": (41, 47), "unused": (11,)}),
        (True, 256, 4, 2, True, tuple(range(30, 84)), {**sliding, "image": (41, 80), "whole": True}),
        (True, 64, 4, 1, False, ends, {**cut, "unused": (2,)}),
        (True, 64, 6, 2, False, ends, {**cut, "splits": 2}),
        (False, 64, 4, 1, False, (199, 200, 201, 511, 512, 700), {**far, "splits": 3, "unused": (4,)}),
        (False, 64, 2, 1, False, (300, 301, 550, 699), {**far, "image": (301, 700), "whole": True, "splits": 2}),
        (False, 256, 2, 2, True, tuple(range(70)), {"unused": (3, 69)}),
        (False, 256, 3, 1, True, tuple(range(55, 80)), sliding),
        (False, 256, 2, 2, True, (0,), {}),
        (False, 256, 2, 1, True, (3, 4), {"unused": (0, 1)}),
        (False, 32, 2, 1, True, tuple(range(90, 100)), {"across": 64, "each": 2, "batch": 2}),
        (False, 512, 8, 1, True, (0, 63, 64, 127, 0), {"segments": 2, "across": 64, "unused": (4,)}),
        (False, 64, 2, 1, False, tuple(range(300, 340)), {**far, **cut, "splits": 2}),
    ]
    for quick, head, heads, kv_heads, f16, positions, options in table:
        shape: Options = {"head": head, "heads": heads, "kv_heads": kv_heads, "f16": f16}
        yield case(_attention_tile, quick, **shape, positions=positions, **options)
    for extreme in ("zeros", "huge", "nan"):
        shape = {"head": 64, "heads": 4, "kv_heads": 2, "f16": False, "positions": (7, 200, 300), **cut}
        yield case(_attention_tile, extreme == "nan", **shape, extreme=extreme)


def _direct_cases() -> Iterator[Case]:
    """The same for attention_direct.wgsl, with fewer keys than a turn and more."""
    sliding: Options = {"window": 16}
    cut: Options = {"segments": 3}
    table: list[tuple[bool, int, int, int, bool, tuple[int, ...], Options]] = [
        (True, 256, 8, 1, True, tuple(range(38, 50)), {**sliding, "image": (41, 47), "unused": (11,)}),
        (True, 64, 4, 1, False, (0, 255, 256, 383, 384, 500, 639), {**cut, "unused": (2,)}),
        (False, 256, 4, 2, True, tuple(range(30, 84)), {**sliding, "image": (41, 80), "whole": True}),
        (False, 512, 3, 1, True, (0, 63, 64, 127, 0), {"segments": 2, "unused": (4,)}),
        (False, 64, 2, 1, True, (3, 4), {"unused": (0, 1)}),
        (False, 64, 4, 2, False, tuple(range(90, 150)), {**sliding, **cut}),
    ]
    for quick, head, heads, kv_heads, f16, positions, options in table:
        shape: Options = {"head": head, "heads": heads, "kv_heads": kv_heads, "f16": f16, "positions": positions}
        yield case(_attention_tile, quick, "attention_direct", **shape, **options, direct=True)
    for extreme in ("zeros", "huge", "nan"):
        shape = {"head": 64, "heads": 4, "kv_heads": 2, "f16": False, "positions": (7, 200, 300), **cut}
        yield case(_attention_tile, extreme == "nan", "attention_direct", **shape, extreme=extreme, direct=True)


def _rows(positions: Sequence[int], unused: Sequence[int], image: tuple[int, int], whole: int) -> list[Row]:
    """Rows at these positions; rows of the image [start, end) see up to its end, and from its start if that is before a
    window of `whole`."""
    rows = []
    for r, t in enumerate(positions):
        inside = image[0] <= t < image[1]
        before = max(t + 1 - whole - image[0], 0) if inside and whole else 0
        rows.append(Row(0 if r in unused else 1 + before, t, 0, image[1] - 1 if inside else t))
    return rows


@dataclass(frozen=True, slots=True)
class AttentionTile:
    head: int
    heads: int
    kv_heads: int
    f16: bool
    positions: Sequence[int]
    segments: int = 1
    window: int = 0
    image: tuple[int, int] = (0, 0)
    whole: bool = False
    unused: Sequence[int] = ()
    splits: int = 1
    each: int = 1
    across: int = 32
    batch: int = 4
    extreme: str = ""
    direct: bool = False


@takes(AttentionTile)
def _attention_tile(lab: Lab, asked: AttentionTile) -> Outcome:
    """With one split, `partial` only carries state between segments; several are joined by attention_join."""
    head, heads, kv_heads, f16 = asked.head, asked.heads, asked.kv_heads, asked.f16
    window, splits = asked.window, asked.splits
    rows = _rows(asked.positions, asked.unused, asked.image, window if asked.whole else 0)
    spans = [seen_by(row, window) for row in rows]
    pages = paged(lab, rows, spans, several=False, sliding=window > 0, segments=asked.segments)
    cache = pages.cache(lab, kv_heads, head, f16=f16)
    q = (3e-4 if asked.extreme == "huge" else 0.2) * lab.activations(len(rows), heads, head, extreme=asked.extreme)
    states, out = lab.out(len(rows) * heads * splits * (head + 2)), lab.held(twins.paired(q))
    bindings: dict[str, Binding] = {"rows": pages.rows, "q": out, "out": out, "partial": states}
    across = asked.across if lab.device.limits.workgroup_memory >= 32 << 10 else 32
    kernel, at_once = "attention_tile", QUERIES
    constants = tile_shape(head, f16=f16, each=asked.each, across=across, batch=asked.batch)
    constants |= {"CARRIED": True} if splits > 1 or asked.segments > 1 else {}
    if asked.direct:
        constants = direct_form(lab.device, f16=f16)
        kernel, at_once = "attention_direct", constants["LANES"] * constants["EACH"]
    grid = [-(-len(rows) * (heads // kv_heads) // at_once), kv_heads, splits]
    constants |= {"SEGMENTED": True} if asked.segments > 1 else {}
    split = split_of(window or max(asked.positions) + 1, splits)
    for i, (first, count) in enumerate(pages.segments):
        part = cache[:, first : first + count]
        keys, values = (lab.put(half, "<f2" if f16 else "<f4") for half in (twins.paired(part[0]), part[1]))
        params = {"heads": heads, "kv_heads": kv_heads, "rows": len(rows), "window": window}
        params |= {**pages.params, "first": first, "count": count, "splits": splits, "split": split}
        params |= {"resumes": i > 0, "final_segment": i == asked.segments - 1}
        params |= {"eights": head // 8} if asked.direct else {}
        lab.run(kernel, grid, {**bindings, "keys": keys, "values": values}, params, constants)
    if splits > 1:
        lab.run("attention_join", [heads, len(rows), slices(head)], bindings, {"splits": splits}, {"HEAD": head})
    expected = twins.attention(q, cache[0], cache[1], rows, window, pages.tables)
    carried = lab.read(states)
    alone = splits == 1 and asked.segments == 1 and not asked.direct
    margin = untouched(carried.size if alone else GUARD)
    return Outcome((lab.read(out), carried[carried.size - margin.size :]), (framed(expected), margin), F32)


def _packed_cases() -> Iterator[Case]:
    small: Options = {"head": 24, "heads": 4, "kv_heads": 2}
    table: list[tuple[bool, Options, tuple[int, ...], int]] = [
        (True, small, (3, 1, 9, UNUSED, 6, UNUSED, UNUSED), 5),
        (True, {**small, "heads": 6}, (13, 20, UNUSED, UNUSED, 30), 0),
        (False, {**small, "kv_heads": 4}, (40, 37, 1, 1), 1),
        (False, {**small, "heads": 2, "kv_heads": 1}, (150,), 70),
    ]
    for quick, shape, lengths, window in table:
        yield case(_packed, quick, "attention_tile", **shape, lengths=lengths, window=window)


def _packed(lab: Lab, head: int, heads: int, kv_heads: int, lengths: Sequence[int], window: int) -> Outcome:
    """PACKED: out, and in `partial` the logarithm of each row's sum; NaN in slots no row wrote."""
    rows = [row for length in lengths for row in ([Row(1, t, 0, t) for t in range(length)] or [Row(0, 0)])]
    cache = lab.normal(2, len(rows), kv_heads, head)
    cache[:, [row.used == 0 for row in rows]] = np.nan
    q = 0.3 * lab.normal(len(rows), heads, head)
    out, lse = lab.held(twins.paired(q)), lab.out(len(rows) * heads)
    bindings = {"rows": lab.put_rows(rows), "q": out, "partial": lse, **_halves(lab, cache)}
    params = {"heads": heads, "kv_heads": kv_heads, "rows": len(rows), "window": window}
    params |= {"table": 0, "table_step": 0, "first": 0, "count": len(rows)}
    params |= {"splits": 1, "split": len(rows), "resumes": False, "final_segment": True}
    constants = tile_shape(head, f16=False, each=1, across=32) | {"PACKED": True}
    lab.run("attention_tile", [-(-len(rows) * (heads // kv_heads) // QUERIES), kv_heads], bindings, params, constants)
    expected = back.packed_attention(q, cache[0], cache[1], rows, window)
    return Outcome((lab.read(out), lab.read(lse)), (framed(expected[0]), framed(expected[1])), F32)


def _halves(lab: Lab, cache: Array) -> dict[str, Buffer]:
    return {"keys": lab.put(twins.paired(cache[0])), "values": lab.put(cache[1])}
