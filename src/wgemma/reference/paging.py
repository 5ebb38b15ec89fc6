"""An arena of pages in random order, for the cases of the kernels around the cache (kernels/tables.wgsl)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from wgemma.gpu.device import Buffer
from wgemma.model.rows import PAGE, PageTables, Row, pages_of
from wgemma.reference import twins
from wgemma.reference.lab import Lab
from wgemma.reference.twins import Array

BEFORE = 2  # pages of the arena before the first segment


@dataclass(frozen=True, slots=True)
class Paged:
    """Rows with their tables, and the arena these point into."""

    rows: Buffer
    params: dict[str, int]
    tables: Sequence[Array]  # of each row's sequence
    segments: Sequence[tuple[int, int]]  # (first, count) in places
    places: int
    seen: Array  # which places hold positions that a row sees

    def cache(self, lab: Lab, kv_heads: int, head: int, *, f16: bool) -> Array:
        """Random keys and values [2, places, kv_heads, head]; NaN where no row may look."""
        cache = lab.normal(2, self.places, kv_heads, head)
        cache[:, ~self.seen] = np.nan
        return cache.astype(np.float16 if f16 else np.float32)


def paged(
    lab: Lab, rows: Sequence[Row], spans: Sequence[range], *, several: bool, sliding: bool, segments: int
) -> Paged:
    """Pages for the positions in `spans`, one of each row; in one sequence all positions between them have pages, too.
    All other pages are one that nobody may read, the first of the first segment, and so are those of the other kind of
    layer."""
    if not several:
        touched = [span for span in spans if span]
        whole = range(min((s.start for s in touched), default=0), max((s.stop for s in touched), default=0))
        spans = [whole]
    quads = -(-pages_of(max((span.stop for span in spans), default=0) or 1) // 4)
    owned = [range(span.start // PAGE, pages_of(span.stop) if span else span.start // PAGE) for span in spans]
    total = max(sum(map(len, owned)) + 1, segments)
    hole, *rest = range(BEFORE, BEFORE + total)
    order = iter(lab.rng.permutation(rest).tolist())
    tables = np.full((len(spans), 2, 4 * quads), hole)
    seen = np.zeros((BEFORE + total) * PAGE, dtype=np.bool_)
    for table, span, pages in zip(tables[:, int(sliding)], spans, owned, strict=True):
        for page in pages:
            table[page] = next(order)
        seen[twins.places(np.arange(span.start, span.stop), table)] = True
    words = np.concatenate([np.array(rows).ravel(), tables.ravel()])
    given = PageTables(len(rows), quads, 2 * quads if several else 0)
    edges = [BEFORE + total * i // segments for i in range(segments + 1)]
    return Paged(
        lab.put(words, "<u4"),
        given.params(sliding=sliding),
        [tables[r if several else 0, int(sliding)] for r in range(len(rows))],
        [(PAGE * first, PAGE * (end - first)) for first, end in pairwise(edges)],
        seen.size,
        seen,
    )


def seen_by(row: Row, window: int) -> range:
    """The positions a row attends to."""
    if not row.used:
        return range(0)
    if not window:
        return range(row.position + 1)
    return range(max(row.position + 1 - window - (row.used - 1), 0), row.sees + 1)
