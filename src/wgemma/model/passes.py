"""The parts of a forward pass: its rows, the residual stream, and its activations."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

from wgemma.gpu.device import Buffer
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Low, Lows
from wgemma.model.cache import KeyValues
from wgemma.model.matmul import Residual
from wgemma.model.text import TextLayer

# Rows of an image or clip have ids from here on instead of a token (kernels/embed.wgsl). Their hidden state is written
# to the pass before replay, unscaled; where a token is needed anyway, PAD is used.
SOFT = 1 << 30
PAD = 0


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


class Activations(Protocol):
    """A pass's activation buffers, by role ("h", "qkv", "ffn x", …)."""

    rows: int  # the most rows a pass may have
    step: int  # the rows whose gate and up fit at once

    def __getitem__(self, role: str) -> Buffer: ...

    @property
    def rounded(self) -> Buffer | None:
        """For a product's 8-bit input, if rounding is allowed."""
        ...

    @property
    def parts(self) -> Buffer | None:
        """For partial sums, if any buffer is free meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass being recorded: its number of rows, the buffer listing them, and a cache of at most `depth`."""

    tape: Tape
    rows: int
    row_buffer: Buffer
    cache: KeyValues
    depth: int
    lows: Lows | None = None  # the active adapters; with `lows.rows`, every row has its own setting

    def low(self, layer: TextLayer, group: str, first: int = 0) -> Low | None:
        """The adapters of a group, for the rows from `first` on."""
        low = self.lows.of(layer.config.index, group) if self.lows else None
        return low.from_row(first) if low else None


@dataclass(slots=True)
class Stream:
    """h is the residual stream without `pending`, the last block's output; `scale` multiplies their sum. The next
    matmul adds the two on the fly (see model/matmul.py)."""

    h: Buffer
    spare: Buffer
    pending: Buffer
    scale: float = 1.0

    def input(self, norms: Buffer, x: Buffer, *, norm: bool = True) -> Residual:
        """The sum, for the next matmul to compute; many rows store it in `x`."""
        return Residual(self.h, self.pending, norms, self.spare, x, self.scale, norm)

    def advance(self) -> None:
        """Swaps buffers, since the sum was written to the spare one."""
        self.h, self.spare, self.scale = self.spare, self.h, 1.0
