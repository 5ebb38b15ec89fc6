"""Cases of the kernels that upload and read weights: clear, repack, embed, stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wgemma.files.quants import BY_NAME
from wgemma.model.passes import SOFT
from wgemma.model.planes import PLANES
from wgemma.model.rows import Row
from wgemma.model.weights import RowOrder
from wgemma.reference import twins
from wgemma.reference.dequantize import dequantize
from wgemma.reference.lab import EXACT, F32, Case, Lab, Outcome, case, framed, takes, untouched, widths


def cases() -> Iterator[Case]:
    yield from _clear_cases()
    yield from _splice_cases()
    yield from _repack_cases()
    yield from _embed_cases()
    for found in (False, True):
        yield case(_stream, found, groups=3, found=found)


def _clear_cases() -> Iterator[Case]:
    for count in (1, 255, 256, 1000):
        yield case(_clear, count == 1000, count=count)


def _clear(lab: Lab, count: int) -> Outcome:
    words = lab.out(count + 3)
    lab.run("clear", [1], {"words": words}, {"count": count})
    return Outcome((lab.read(words),), (framed(np.append(np.zeros(count), untouched(3))),), EXACT)


def _splice_cases() -> Iterator[Case]:
    for start, to, size in ((0, 0, 1), (3, 1, 2), (2, 5, 300), (1, 2, 1023), (7, 3, 1)):
        yield case(_splice, size > 1, start=start, to=to, size=size)


def _splice(lab: Lab, start: int, to: int, size: int) -> Outcome:
    """The output's bytes are below the poison's, so that none is mistaken for it."""
    source, before = (lab.rng.integers(0, 100, 4 * 260, dtype=np.uint8) for _ in range(2))
    words = lab.held(before.view("<f4"))
    lab.run(
        "splice",
        [-(-(to % 4 + size) // 256)],
        {"source": lab.put(source, "u1"), "words": words},
        {"start": start, "to": to, "size": size},
    )
    after = twins.splice(source.tobytes(), start, before.tobytes(), to, size)
    return Outcome((lab.read(words, "u1"),), (framed(np.frombuffer(after, np.uint8)),), EXACT)


def _repack_cases() -> Iterator[Case]:
    for kind in PLANES:
        narrow, middling, _ = widths(kind)
        yield case(_repack, True, kind=kind, rows=7, columns=middling, most=3, piece=2)
        yield case(_repack, False, kind=kind, rows=1, columns=narrow)
        for order in ("alternate", "split experts", "fused experts"):
            quick = kind in ("Q8_0", "Q6_K")
            yield case(_repack, quick, kind=kind, rows=20, columns=middling, order=order, most=10, piece=3)
    yield case(_repack, True, kind="MXFP4", rows=28, columns=288, exponents=251)


@dataclass(frozen=True, slots=True)
class Repack:
    kind: str
    rows: int
    columns: int
    order: str = ""
    most: int = 0
    piece: int = 0
    exponents: int = 0  # of MXFP4's scales: so many, from the smallest on; with the last five, weights are infinite


@takes(Repack)
def _repack(lab: Lab, asked: Repack) -> Outcome:
    """Planes hold the same values as the file's blocks; read back with embed."""
    kind, rows, columns, most, piece = asked.kind, asked.rows, asked.columns, asked.most, asked.piece
    tensors = [(lab.raw(kind, count, columns), how) for count, how in _orders(asked.order, rows)]
    for raw, _ in tensors if asked.exponents else ():
        blocks = raw.reshape(-1, BY_NAME[kind].nbytes)
        blocks[:, 0] = np.arange(len(blocks)) % asked.exponents
    matrix = lab.matrix(kind, columns, tensors, most, piece)
    expected = np.empty((rows, columns))
    for raw, how in tensors:
        expected[twins.placed(len(raw), how)] = dequantize(raw, kind, (len(raw), columns))
    margins = [lab.margins(part) for part in matrix.parts]
    got = (lab.values(matrix), *margins)
    tolerance = F32 if asked.exponents else EXACT  # hardware may flush the smallest to zero
    return Outcome(got, (framed(expected), *(untouched(margin.size) for margin in margins)), tolerance)


def _orders(order: str, rows: int) -> list[tuple[int, RowOrder]]:
    """(rows, order) of a matrix's tensors; experts have ten rows, five of gate and five of up."""
    if order == "alternate":
        half = rows // 2
        return [(half, RowOrder(i, group=half, half=half, group_stride=rows, step=2)) for i in (0, 1)]
    if order == "split experts":
        return [(rows // 2, RowOrder(i, group=5, half=5, group_stride=10, step=2)) for i in (0, 1)]
    if order == "fused experts":
        return [(rows, RowOrder(group=10, half=5, group_stride=10, step=2))]
    return [(rows, RowOrder())]


def _embed_cases() -> Iterator[Case]:
    for kind in PLANES:
        narrow, middling, wide = widths(kind)
        yield case(_embed, True, kind=kind, rows=9, columns=middling, most=4)
        yield case(_embed, False, kind=kind, rows=2, columns=wide, most=0)
        yield case(_embed, False, kind=kind, rows=7, columns=narrow, most=0, by_index=True)
    for pads in (False, True):
        yield case(_embed, True, kind="Q8_0", rows=9, columns=96, most=4, soft=(0, 3, 4, 7), pads=pads)


@dataclass(frozen=True, slots=True)
class Embed:
    kind: str
    rows: int
    columns: int
    most: int
    by_index: bool = False
    soft: Sequence[int] = ()
    pads: bool = False


@takes(Embed)
def _embed(lab: Lab, asked: Embed) -> Outcome:
    """The last row's token is in no part, so its y stays unchanged. So does a soft row's, unless it is padded."""
    rows, columns, by_index = asked.rows, asked.columns, asked.by_index
    scale, vocabulary = 1.7, 11
    matrix, w = lab.weights(asked.kind, vocabulary, columns, asked.most)
    tokens = [*lab.rng.integers(0, vocabulary, rows - 1).tolist(), vocabulary]
    for row in asked.soft:
        tokens[row] = SOFT + 100 * row
    picked = list(range(rows)) if by_index else [0 if token >= SOFT else token for token in tokens]
    row_buffer, y = lab.put_rows([Row(1, 0, token) for token in tokens]), lab.out(rows * columns)
    for part in matrix.parts:
        bindings = {**part.bindings(), "rows": row_buffer, "y": y}
        params = {
            "blocks": matrix.blocks,
            "first": part.first,
            "count": part.rows,
            "by_index": by_index,
            "scale": scale,
            "pads": asked.pads,
        }
        lab.run("embed", [-(-matrix.blocks // 64), rows], bindings, params, {"TYPE": matrix.planes.reader})
    expected = untouched(rows, columns)
    known = rows if by_index else rows - 1
    expected[:known] = twins.embed(w, picked[:known], scale)
    if not asked.pads:
        expected[list(asked.soft)] = untouched(1, columns)
    return Outcome((lab.read(y),), (framed(expected),), F32)


def _stream(lab: Lab, groups: int, found: bool) -> Outcome:
    """The all-ones sum may be in the very last thread."""
    words = np.zeros((groups, 8, 256, 4), dtype=np.uint32)
    words[-1, -1, -1, -1] = 0xFFFFFFFF if found else 0xFFFFFFFE
    mark = lab.out(1)
    lab.run("stream", [groups], {"words": lab.put(words, "<u4"), "found": mark})
    expected = np.ones(1) if twins.stream(words) else untouched(1)
    return Outcome((lab.read(mark, "<u4"),), (framed(expected),), EXACT)
