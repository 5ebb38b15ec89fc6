"""What one decoded token reads from GPU memory, dispatch by dispatch, for `wgemma bench`.

Weights and caches are recognised by the buffers a dispatch binds; activations are not counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wgemma.engine.runner import Runner
from wgemma.gpu.device import Binding, Buffer, Dispatch, Span
from wgemma.model.cache import CacheSegment
from wgemma.model.config import LayerConfig
from wgemma.model.text import TextWeights
from wgemma.model.weights import Matrix


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One decoded token's time in a kernel, by what it reads; `gb_per_s` only for weights and KV."""

    kernel: str
    what: str
    count: int
    microseconds: float
    share: float
    gb_per_s: float | None


@dataclass(frozen=True, slots=True)
class Read:
    """What one dispatch reads, in bytes and as a description; activations are not counted."""

    what: str = ""
    weights: int = 0
    kv: int = 0


class Reads:
    """Recognises weights and caches by the buffers a dispatch binds."""

    def __init__(self, runner: Runner) -> None:
        self.engine = runner.engine
        self.arena = runner.paging.arena
        self.matrices = {id(part.buffer): matrix for matrix in _matrices(self.engine.weights) for part in matrix.parts}

    def of(self, dispatch: Dispatch, positions: int) -> Read:
        """What this dispatch reads in a decode step after `positions` tokens."""
        bound = dispatch.bindings
        if "codes" in bound and id(_buffer(bound["codes"])) in self.matrices:
            return self._weights(dispatch, self.matrices[id(_buffer(bound["codes"]))])
        if dispatch.kernel.name.startswith("attention") and "keys" in bound:
            return self._history(_buffer(bound["keys"]), positions)
        return Read()

    def _weights(self, dispatch: Dispatch, matrix: Matrix) -> Read:
        bound, config = dispatch.bindings, self.engine.config
        if dispatch.kernel.name == "embed":  # one row
            return Read(matrix.kind, matrix.planes.nbytes(1, matrix.columns) // len(matrix.parts))
        size = sum(plane.size for plane in {bound["codes"], bound.get("scales", bound["codes"])})
        if "chosen" not in bound:
            return Read(f"{matrix.kind} {matrix.columns}×{matrix.rows}", size)
        used, there = config.experts_used, config.expert_count
        what = f"{matrix.kind} {matrix.columns}×{matrix.rows // there}, {used} of {there}"
        return Read(what, size * used // there)

    def _history(self, keys: Buffer, positions: int) -> Read:
        for layer, segment in self._segments():
            if segment.keys is keys:
                seen = min(positions, layer.window or positions)
                kind = "sliding" if layer.sliding else "full"
                what = f"{self.arena.kv} {layer.heads}×{layer.head_dim}, {kind}"
                return Read(what, 0, 2 * seen * self.arena.token_bytes(layer))
        return Read()

    def _segments(self) -> Iterator[tuple[LayerConfig, CacheSegment]]:
        for layer in self.arena.owners:
            for segment in self.arena.segments[layer.index]:
                yield layer, segment


def _buffer(bound: Binding) -> Buffer:
    return bound.buffer if isinstance(bound, Span) else bound


def _matrices(weights: TextWeights) -> Iterator[Matrix]:
    yield from (weights.embedding, weights.head)
    for layer in weights.layers:
        yield from (*layer.attention.qkv, layer.attention.output, *layer.ffn.gate_up, layer.ffn.down)
        if layer.experts:
            yield from (layer.experts.router, *layer.experts.gate_up, layer.experts.down)
        if layer.per_layer:
            yield from (layer.per_layer.gate, layer.per_layer.projection)
    if weights.inputs:
        yield weights.inputs.projection
        if weights.inputs.table:
            yield weights.inputs.table


def grouped(times: Sequence[tuple[str, float]], reads: Sequence[Read]) -> list[KernelTime]:
    """One token's dispatch times (ns), summed by kernel and by what it reads; longest first."""
    total = sum(nanoseconds for _, nanoseconds in times) or 1.0
    counts, spent, sizes = Counter[tuple[str, str]](), defaultdict[Any, float](float), Counter[tuple[str, str]]()
    for (kernel, nanoseconds), read in zip(times, reads, strict=True):
        key = kernel, read.what
        counts[key] += 1
        spent[key] += nanoseconds
        sizes[key] += read.weights + read.kv
    return [
        KernelTime(
            *key,
            count=counts[key],
            microseconds=spent[key] / 1e3,
            share=spent[key] / total,
            gb_per_s=sizes[key] / spent[key] if sizes[key] and spent[key] else None,
        )
        for key in sorted(counts, key=lambda key: -spent[key])
    ]
