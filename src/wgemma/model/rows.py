"""The buffer a pass reads its rows from, with the page tables of their sequences behind them (kernels/tables.wgsl)."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from wgemma.gpu.ledger import Ledger

PAGE = 64  # positions
_QUAD = 16  # bytes: four pages of a table


class Row(NamedTuple):
    """One token of one sequence, as in kernels/row.wgsl."""

    used: int  # 0: padding; otherwise 1 + the positions before its window that it sees too
    position: int
    token: int = 0
    sees: int = 0  # the last position its sliding layers attend to


ROW_BYTES = 16


def pack_rows(rows: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Rows in the GPU's layout; a long prompt gives plain tuples, which cost less to make."""
    numbers = list(chain.from_iterable(rows))
    return struct.pack(f"<{len(numbers)}I", *numbers)


@dataclass(frozen=True, slots=True)
class PageTables:
    """Where the tables lie, in vectors of four pages: those of the first row's sequence, its sliding layers' from
    there, and the next row's. `step` 0: all rows belong to one sequence."""

    first: int
    sliding: int
    step: int

    def params(self, *, sliding: bool) -> dict[str, int]:
        """The kernels' parameters."""
        return {"table": self.first + (self.sliding if sliding else 0), "table_step": self.step}


class RowBuffer:
    """Room for `rows` rows, and for the tables of one sequence or, if they are `several`, of one for each row."""

    def __init__(self, ledger: Ledger, rows: int, context: int, *, several: bool, label: str) -> None:
        self.device = ledger.device
        self.rows = rows
        self.context = context
        quads = -(-pages_of(context) // 4)
        self.tables = PageTables(rows, quads, 2 * quads if several else 0)
        self.buffer = ledger.buffer(_QUAD * (rows + 2 * quads * (rows if several else 1)), label)

    def put_rows(self, rows: Iterable[tuple[int, int, int, int]], first: int = 0) -> None:
        self.device.write(self.buffer, ROW_BYTES * first, pack_rows(rows))

    def put_pages(self, row: int, first: int, pages: Sequence[int], *, sliding: bool) -> None:
        """Enters `pages` into the table of a row's sequence, from page number `first` on."""
        if pages:
            table = self.tables.params(sliding=sliding)
            at = _QUAD * (table["table"] + row * table["table_step"]) + 4 * first
            self.device.write(self.buffer, at, struct.pack(f"<{len(pages)}I", *pages))


def pages_of(positions: int) -> int:
    """How many pages hold this many positions."""
    return -(-positions // PAGE)
