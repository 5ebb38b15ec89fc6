"""The keys and values of one sequence.

Sliding layers keep a ring of window + largest chunk places, so a sequence steps back a chunk for nothing. Full layers
keep a list of segments; growing adds one and copies nothing. Positions are plain numbers: stepping back is forgetting.
"""

from dataclasses import dataclass
from typing import Protocol

from wgemma.errors import ContextOverflow, OutOfMemory
from wgemma.gpu.device import Buffer, Device
from wgemma.model.config import Config, LayerConfig

PAGE = 256
FIRST_SEGMENT = 8192


@dataclass(frozen=True, slots=True)
class Segment:
    """Places [first, first + count) of a layer's cache; a ring is one segment with first = 0."""

    first: int
    count: int
    keys: Buffer
    values: Buffer


def ring_places(config: Config, chunk: int) -> int:
    """Places of a sliding layer's ring: whole pages of window + largest chunk."""
    return -(-((config.window or 0) + chunk) // PAGE) * PAGE


class Places(Protocol):
    """Where a pass finds keys and values. `packed`: it brings whole sequences one after another, and the keys and
    values are those of its own rows (kernels/kv.wgsl)."""

    packed: bool
    kv: str
    ring: int
    segments: dict[int, list[Segment]]


class Cache:
    """The cache of every layer that owns one. `kv` is "f16" or "f32"; `context` bounds its growth."""

    packed = False

    def __init__(self, device: Device, config: Config, *, kv: str, chunk: int, context: int) -> None:
        self.device = device
        self.kv = kv
        self.context = context
        self.owners = [layer for layer in config.layers if layer.donor is None]
        self.capacity = 0  # positions the full layers hold
        self.segments: dict[int, list[Segment]] = {layer.index: [] for layer in self.owners}
        self.ring = ring_places(config, chunk)
        try:
            for layer in self.owners:
                if layer.sliding:
                    self.segments[layer.index].append(self._segment(layer, 0, self.ring))
            self.grow(min(FIRST_SEGMENT, context))
        except OutOfMemory:
            self.free()
            raise

    def token_bytes(self, layer: LayerConfig) -> int:
        """Bytes of one position's keys (or values) in one layer."""
        return layer.kv_heads * layer.head_dim * (2 if self.kv == "f16" else 4)

    @property
    def nbytes(self) -> int:
        return sum(s.keys.size + s.values.size for segments in self.segments.values() for s in segments)

    def grow(self, positions: int) -> None:
        """Makes room for `positions`, or says why not; a failed attempt leaves the cache as it was."""
        if positions > self.context:
            raise ContextOverflow(f"{positions} tokens are more than the context of {self.context}.")
        while self.capacity < positions:
            self._add_segment()

    async def make_room(self, positions: int) -> None:
        """`grow`, and sure of it: a page learns late that there is no memory."""
        before = self.capacity
        self.grow(positions)
        if self.capacity == before:
            return
        try:
            await self.device.confirm()
        except OutOfMemory:
            grown, needed = self.capacity, self._shrink(before)
            raise _cannot_grow(before, grown, needed) from None

    def _shrink(self, capacity: int) -> int:
        """Gives back the segments of full layers from `capacity` on; says how many bytes they had."""
        freed = 0
        for layer in self.owners:
            segments = self.segments[layer.index]
            while not layer.sliding and segments and segments[-1].first >= capacity:
                segment = segments.pop()
                freed += segment.keys.size + segment.values.size
                self._free_segment(segment)
        self.capacity = capacity
        return freed

    def _add_segment(self) -> None:
        """Four times the room, as far as a binding and the context allow: always by the same steps, and few of them,
        because every segment costs a dispatch per layer."""
        full = [layer for layer in self.owners if not layer.sliding]
        wanted = 3 * self.capacity or FIRST_SEGMENT
        limit = min((self.device.limits.binding // self.token_bytes(layer) for layer in full), default=self.context)
        pages = max(limit // PAGE, 1)  # WebGPU's least limit is far larger than a page
        count = min(wanted, pages * PAGE, -(-(self.context - self.capacity) // PAGE) * PAGE)
        made: dict[int, Segment] = {}
        try:
            for layer in full:
                made[layer.index] = self._segment(layer, self.capacity, count)
        except OutOfMemory:
            for segment in made.values():
                self._free_segment(segment)
            needed = sum(2 * count * self.token_bytes(layer) for layer in full)
            raise _cannot_grow(self.capacity, self.capacity + count, needed) from None
        for index, segment in made.items():
            self.segments[index].append(segment)
        self.capacity += count

    def _segment(self, layer: LayerConfig, first: int, count: int) -> Segment:
        size = count * self.token_bytes(layer)
        keys = self.device.buffer(size, f"keys of layer {layer.index}")
        try:
            return Segment(first, count, keys, self.device.buffer(size, f"values of layer {layer.index}"))
        except OutOfMemory:
            self.device.free(keys)
            raise

    def _free_segment(self, segment: Segment) -> None:
        self.device.free(segment.keys)
        self.device.free(segment.values)

    def free(self) -> None:
        for segments in self.segments.values():
            for segment in segments:
                self._free_segment(segment)
            segments.clear()
        self.capacity = 0


def _cannot_grow(before: int, after: int, nbytes: int) -> OutOfMemory:
    return OutOfMemory(
        f"the context cannot grow from {before} to {after} tokens: {nbytes / 1e6:.0f} MB more would be needed. "
        "Load the model with a smaller context or kv='f16'."
    )
