"""The KV cache of one sequence.

Sliding layers have a ring of window + largest chunk slots, so rewinding by up to a chunk is free. Full layers have a
list of segments; growing adds one and copies nothing. Rewinding just lowers the position.
"""

from dataclasses import dataclass
from typing import Protocol

from wgemma.errors import ContextOverflow, OutOfMemory
from wgemma.gpu.device import Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.model.config import Config, LayerConfig

PAGE = 256
FIRST_SEGMENT = 8192


@dataclass(frozen=True, slots=True)
class CacheSegment:
    """Slots [first, first + count) of a layer's cache; a ring is one segment with first = 0."""

    first: int
    count: int
    keys: Buffer
    values: Buffer


def ring_places(config: Config, chunk: int) -> int:
    """Slots of a sliding layer's ring: window + largest chunk, rounded up to whole pages."""
    return -(-((config.window or 0) + chunk) // PAGE) * PAGE


def token_bytes(layer: LayerConfig, kv: str) -> int:
    """Bytes of one position's keys (or values) in one layer."""
    return layer.kv_heads * layer.head_dim * (2 if kv == "f16" else 4)


class KeyValues(Protocol):
    """A pass's keys and values. `packed`: the pass holds whole sequences, one after another, and its keys and values
    are those of its own rows (kernels/kv.wgsl)."""

    packed: bool
    kv: str
    ring: int
    segments: dict[int, list[CacheSegment]]


class Cache:
    """The cache of every layer that has its own. `kv` is "f16" or "f32"; `context` limits its growth."""

    packed = False

    def __init__(self, ledger: Ledger, config: Config, *, kv: str, chunk: int, context: int) -> None:
        self.ledger = ledger
        self.kv = kv
        self.context = context
        self.owners = [layer for layer in config.layers if layer.donor is None]
        self.capacity = 0  # positions the full layers hold
        self.segments: dict[int, list[CacheSegment]] = {layer.index: [] for layer in self.owners}
        self.ring = ring_places(config, chunk)
        for layer in self.owners:
            if layer.sliding:
                self.segments[layer.index].append(self._segment(layer, 0, self.ring))
        self.grow(min(FIRST_SEGMENT, context))

    def token_bytes(self, layer: LayerConfig) -> int:
        return token_bytes(layer, self.kv)

    def pieces(self, positions: int) -> list[tuple[Buffer, int]]:
        """(buffer, bytes in use) of every key and value buffer: rings whole, full layers up to `positions`."""
        pieces = []
        for layer in self.owners:
            for segment in self.segments[layer.index]:
                used = segment.count if layer.sliding else max(0, min(segment.count, positions - segment.first))
                size = used * self.token_bytes(layer)
                if size:
                    pieces += [(segment.keys, size), (segment.values, size)]
        return pieces

    def nbytes(self, positions: int) -> int:
        """The size of all pieces, whether or not the cache has grown that far."""
        return sum(2 * self.token_bytes(o) * (self.ring if o.sliding else positions) for o in self.owners)

    def grow(self, positions: int) -> None:
        """Grows the cache to `positions`; on failure it raises and leaves the cache unchanged."""
        if positions > self.context:
            raise ContextOverflow(f"{positions} tokens exceed the context of {self.context}.")
        while self.capacity < positions:
            self._add_segment()

    async def make_room(self, positions: int) -> None:
        """`grow`, confirmed: a web page learns late that it is out of memory."""
        before = self.capacity
        self.grow(positions)
        if self.capacity == before:
            return
        try:
            await self.ledger.device.confirm()
        except OutOfMemory:
            grown, needed = self.capacity, self._shrink(before)
            raise _cannot_grow(before, grown, needed) from None

    def _shrink(self, capacity: int) -> int:
        """Frees the segments of full layers from `capacity` on; returns their size in bytes."""
        freed = 0
        for layer in self.owners:
            segments = self.segments[layer.index]
            while not layer.sliding and segments and segments[-1].first >= capacity:
                segment = segments.pop()
                freed += segment.keys.size + segment.values.size
                self.ledger.drop(segment.keys, segment.values)
        self.capacity = capacity
        return freed

    def _add_segment(self) -> None:
        """Grows to four times the capacity, as far as binding and context allow. The steps are always the same and few,
        because every segment costs a dispatch per layer."""
        full = [layer for layer in self.owners if not layer.sliding]
        wanted = 3 * self.capacity or FIRST_SEGMENT
        binding = self.ledger.device.limits.binding
        limit = min((binding // self.token_bytes(layer) for layer in full), default=self.context)
        pages = max(limit // PAGE, 1)  # WebGPU's minimum limit is far larger than a page
        count = min(wanted, pages * PAGE, -(-(self.context - self.capacity) // PAGE) * PAGE)
        made: dict[int, CacheSegment] = {}
        try:
            for layer in full:
                made[layer.index] = self._segment(layer, self.capacity, count)
        except OutOfMemory:
            for segment in made.values():
                self.ledger.drop(segment.keys, segment.values)
            needed = sum(2 * count * self.token_bytes(layer) for layer in full)
            raise _cannot_grow(self.capacity, self.capacity + count, needed) from None
        for index, segment in made.items():
            self.segments[index].append(segment)
        self.capacity += count

    def _segment(self, layer: LayerConfig, first: int, count: int) -> CacheSegment:
        size = count * self.token_bytes(layer)
        keys, values = self.ledger.buffers((size, f"{half} of layer {layer.index}") for half in ("keys", "values"))
        return CacheSegment(first, count, keys, values)


def _cannot_grow(before: int, after: int, nbytes: int) -> OutOfMemory:
    return OutOfMemory(
        f"the context cannot grow from {before} to {after} tokens: {nbytes / 1e6:.0f} MB more are needed. "
        "Load the model with a smaller context or kv='f16'."
    )
