"""The KV cache of all sequences: an arena of pages.

Every layer that has its own keys and values has as many places as its kind has pages, times PAGE; a page means the
same places in every layer of its kind. Full and sliding layers are two kinds. Which pages a sequence has is for others
to know (engine/paging.py); kernels find a position by its sequence's table (kernels/tables.wgsl).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from wgemma.errors import OutOfMemory
from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.config import Config, LayerConfig
from wgemma.model.rows import PAGE


@dataclass(frozen=True, slots=True)
class CacheSegment:
    """Places [first, first + count) of a layer. There is more than one only beyond the limit of a binding."""

    first: int
    count: int
    keys: Buffer
    values: Buffer


def token_bytes(layer: LayerConfig, kv: str) -> int:
    """Bytes of one position's keys (or values) in one layer."""
    return layer.kv_heads * layer.head_dim * (2 if kv == "f16" else 4)


def page_costs(config: Config, kv: str) -> dict[bool, int]:
    """Bytes of a page in all layers of its kind; by whether they are the sliding ones."""
    costs = {False: 4 * PAGE, True: 0}  # the tokens themselves belong to the full layers
    for layer in config.layers:
        if layer.donor is None:
            costs[layer.sliding] += 2 * PAGE * token_bytes(layer, kv)
    return costs


class KeyValues(Protocol):
    """A pass's keys and values. `packed`: the pass holds whole sequences, one after another, and its keys and values
    are those of its own rows (kernels/kv.wgsl)."""

    packed: bool
    kv: str
    segments: dict[int, list[CacheSegment]]


class Arena:
    """The pages of every layer that has its own, and the tokens in them (`history`, for the penalties). `kv` is "f16"
    or "f32"."""

    packed = False

    def __init__(self, ledger: Ledger, config: Config, *, kv: str, full: int, sliding: int) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.kv = kv
        self.owners = [layer for layer in config.layers if layer.donor is None]
        self.segments: dict[int, list[CacheSegment]] = {layer.index: [] for layer in self.owners}
        self.costs = page_costs(config, kv)
        self.pages = {False: full, True: sliding}  # by whether they are the sliding layers'
        self.version = 0  # how often buffers were replaced; a recording is valid for one of them
        self.history = ledger.buffer(4 * PAGE * full, "history")
        self._between = ledger.buffer(max(map(self._page_bytes, self.owners)), "a page on its way")
        for layer in self.owners:
            self.segments[layer.index] = self._segments(layer, self.pages[layer.sliding])

    def token_bytes(self, layer: LayerConfig) -> int:
        return token_bytes(layer, self.kv)

    def _page_bytes(self, layer: LayerConfig) -> int:
        return PAGE * self.token_bytes(layer)

    @property
    def nbytes(self) -> int:
        return sum(count * self.costs[sliding] for sliding, count in self.pages.items())

    # -- growing

    async def grow(self, count: int, *, sliding: bool) -> None:
        """Grows to `count` pages of this kind, which keep what they hold; on failure it raises and nothing changes."""
        before = self.pages[sliding]
        layers = [layer for layer in self.owners if layer.sliding == sliding]
        made: dict[int, list[CacheSegment]] = {}
        history = None
        try:
            for layer in layers:
                made[layer.index] = self._segments(layer, count, self.segments[layer.index])
            if not sliding:
                history = self.ledger.buffer(4 * PAGE * count, "history")
            await self.device.confirm()
        except OutOfMemory:
            for layer in layers:
                self._drop(made.get(layer.index, []), but=self.segments[layer.index])
            if history is not None:
                self.ledger.drop(history)
            needed = (count - before) * self.costs[sliding]
            raise OutOfMemory(
                f"the KV cache cannot grow from {before * PAGE} to {count * PAGE} tokens: {needed / 1e6:.0f} MB more "
                "are needed. Load the model with a smaller context or kv='f16'."
            ) from None
        tape, old = Tape(self.device, "grow"), {layer.index: self.segments[layer.index] for layer in layers}
        for layer in layers:
            for was, now in zip(old[layer.index], made[layer.index], strict=False):
                if was is not now:
                    size = was.count * self.token_bytes(layer)
                    tape.copy(was.keys, 0, now.keys, 0, size)
                    tape.copy(was.values, 0, now.values, 0, size)
        if history is not None:
            tape.copy(self.history, 0, history, 0, self.history.size)
        tape.program().replay()
        tape.free()
        for layer in layers:
            self.segments[layer.index] = made[layer.index]
            self._drop(old[layer.index], but=made[layer.index])
        if history is not None:
            self.ledger.drop(self.history)
            self.history = history
        self.pages[sliding] = count
        self.version += 1

    def _segments(self, layer: LayerConfig, pages: int, old: Sequence[CacheSegment] = ()) -> list[CacheSegment]:
        """Segments for this many pages; those of the old ones that are as long as they can be are kept."""
        limits = self.device.limits
        most = max(min(limits.binding, limits.buffer) // self._page_bytes(layer), 1) * PAGE
        kept = [segment for segment in old if segment.count == most]
        made: list[CacheSegment] = []
        try:
            firsts = range(len(kept) * most, pages * PAGE, most)
            made.extend(self._segment(layer, first, min(most, pages * PAGE - first)) for first in firsts)
        except OutOfMemory:
            self._drop(made)
            raise
        return kept + made

    def _segment(self, layer: LayerConfig, first: int, count: int) -> CacheSegment:
        size = count * self.token_bytes(layer)
        keys, values = self.ledger.buffers((size, f"{half} of layer {layer.index}") for half in ("keys", "values"))
        return CacheSegment(first, count, keys, values)

    def _drop(self, segments: Iterable[CacheSegment], but: Sequence[CacheSegment] = ()) -> None:
        for segment in segments:
            if segment not in but:
                self.ledger.drop(segment.keys, segment.values)

    # -- moving

    def copy(self, source: int, target: int, *, sliding: bool) -> None:
        """Copies a page in every layer of its kind."""
        tape = Tape(self.device, "copy a page")
        for layer in self.owners:
            if layer.sliding == sliding:
                size = self._page_bytes(layer)
                for (old, at), (new, to) in zip(self._halves(layer, source), self._halves(layer, target), strict=True):
                    self._copy(tape, old, at, new, to, size)
        if not sliding:
            size = 4 * PAGE
            self._copy(tape, self.history, size * source, self.history, size * target, size)
        tape.program().replay()
        tape.free()

    def _copy(self, tape: Tape, old: Buffer, at: int, new: Buffer, to: int, size: int) -> None:
        if old is not new:
            tape.copy(old, at, new, to, size)
            return
        tape.copy(old, at, self._between, 0, size)  # WebGPU does not copy within a buffer
        tape.copy(self._between, 0, new, to, size)

    def _halves(self, layer: LayerConfig, page: int) -> list[tuple[Buffer, int]]:
        """(buffer, offset) of a page's keys and of its values."""
        segment = next(s for s in self.segments[layer.index] if s.first <= page * PAGE < s.first + s.count)
        at = (page * PAGE - segment.first) * self.token_bytes(layer)
        return [(segment.keys, at), (segment.values, at)]

    def stretches(self, pages: Sequence[int], *, sliding: bool) -> Iterator[list[tuple[Buffer, int, int]]]:
        """For every layer's keys, then its values: (buffer, offset, bytes) of these pages."""
        for layer in self.owners:
            if layer.sliding == sliding:
                size = self._page_bytes(layer)
                halves = [self._halves(layer, page) for page in pages]
                yield from ([(*both[half], size) for both in halves] for half in (0, 1))


class PackedCache:
    """Keys and values of a pass of packed rows, in f32, with row r's key in slot r (kernels/kv.wgsl).

    With `checkpointing`, layers whose keys no other layer shares take turns in one buffer.
    """

    packed = True
    kv = "f32"

    def __init__(self, ledger: Ledger, config: Config, rows: int, *, checkpointing: bool) -> None:
        self.segments: dict[int, list[CacheSegment]] = {}
        self.shared = {layer.donor for layer in config.layers if layer.donor is not None}
        owners = [layer for layer in config.layers if layer.donor is None]
        sizes = {layer.index: 4 * rows * layer.kv_heads * layer.head_dim for layer in owners}
        passing: CacheSegment | None = None
        for index, size in sorted(sizes.items(), key=lambda each: -each[1]):  # the largest comes first
            keep = index in self.shared or not checkpointing
            segment = passing if passing and not keep else _packed_segment(ledger, rows, size)
            passing = passing if keep else segment
            self.segments[index] = [segment]


def _packed_segment(ledger: Ledger, rows: int, size: int) -> CacheSegment:
    keys, values = (ledger.buffer(size, f"{name} of packed rows") for name in ("keys", "values"))
    return CacheSegment(0, rows, keys, values)
