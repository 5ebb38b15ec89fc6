"""The parts of a forward pass: its rows, the residual stream, and its activations."""

from dataclasses import dataclass
from typing import Protocol

from wgemma.gpu.device import Buffer
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import Low, Lows
from wgemma.model.cache import KeyValues
from wgemma.model.matmul import Residual
from wgemma.model.rows import PageTables
from wgemma.model.text import TextLayer

# Rows of an image or clip have ids from here on instead of a token (kernels/embed.wgsl). Their hidden state is written
# to the pass before replay, unscaled; where a token is needed anyway, PAD is used.
SOFT = 1 << 30
PAD = 0


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
    """One forward pass being recorded: its number of rows, the buffer listing them, the page tables behind them (a
    packed cache has none), and a cache of at most `depth`."""

    tape: Tape
    rows: int
    row_buffer: Buffer
    tables: PageTables | None
    cache: KeyValues
    depth: int
    lows: Lows | None = None  # the active adapters; with `lows.rows`, every row has its own setting

    @property
    def several(self) -> bool:
        """Whether every row belongs to a sequence of its own."""
        return self.tables is not None and self.tables.step > 0

    def places(self, *, sliding: bool) -> dict[str, int]:
        """The parameters by which kernels find a position in the cache."""
        return self.tables.params(sliding=sliding) if self.tables else {"table": 0, "table_step": 0}

    def low(self, layer: TextLayer, group: str, first: int = 0) -> Low | None:
        """The adapters of a group, for the rows from `first` on."""
        low = self.lows.of(layer.config.index, group) if self.lows else None
        return low.from_row(first) if low else None


@dataclass(slots=True)
class Stream:
    """h is the residual stream without `pending`, the last block's output, which may be in several `parts`; `scale`
    multiplies their sum. The next matmul adds the two on the fly (see model/matmul.py)."""

    h: Buffer
    spare: Buffer
    pending: Buffer
    scale: float = 1.0
    parts: int = 0

    def input(self, norms: Buffer, x: Buffer, *, norm: bool = True) -> Residual:
        """The sum, for the next matmul to compute; many rows store it in `x`."""
        return Residual(self.h, self.pending, norms, self.spare, x, self.scale, norm, self.parts)

    def add(self, output: Buffer, parts: Buffer | None = None, left: int = 0) -> None:
        """Makes a block's output pending, or if partial sums are left of it, these."""
        self.pending, self.parts = (parts, left) if parts is not None and left else (output, 0)

    def advance(self) -> None:
        """Swaps buffers, since the sum was written to the spare one."""
        self.h, self.spare, self.scale = self.spare, self.h, 1.0
