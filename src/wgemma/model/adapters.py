"""Adapters on the GPU: all loaded ones form one low-rank product beside each group of matrices that share an input.

    z[r, t·R + j] = scales[r, t·R + j] · Σ_k a[t·R + j, k] · x[r, k]
    y[r, n]      += Σ_j z[r, t(n)·R + j] · b[j, n]

    a [T·R, K], b [R, N]; t(n) is the target of result n: n % 2 where the rows of gate and up alternate, otherwise the
    number of the two edges at or before n.

z has its own dispatch; for a few rows, on devices that can, the dispatch that needs z computes it in its `meeting`.
Adapters are concatenated along R, so a scale of 0 switches one off; parts an adapter lacks are zeros. Each expert has
its own product: a [E·T·R, K], b [E, R, N]. The embedding's product looks up a token instead of multiplying (`Table`).

A pass over one sequence has one setting for all its rows: scales [T·R], with a step of 0 from row to row. A pass over
several has one for each row (`Lows.by_row`), in a buffer of its own, so that the two kinds of passes may alternate.
"""

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from wgemma.errors import AdapterError
from wgemma.files.adapter_names import EMBEDDING, OUTPUT
from wgemma.files.adapter_pairs import AdapterFile, Pair
from wgemma.gpu.device import Binding, Buffer, Device, Span
from wgemma.gpu.ledger import Ledger
from wgemma.model.config import Config
from wgemma.model.forms import FEW
from wgemma.model.text import Experts, TextLayer, TextWeights
from wgemma.model.weights import Matrix, MatrixPart

NEVER = 0xFFFFFFFF  # an edge no result reaches
Z_SHARE = 6144  # columns of a long row per workgroup (low_share.wgsl)
MOST_BINDINGS = 12  # storage bindings of a mat-vec that computes z
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Group:
    """Matrices that share their input: their tensors, the number of results of each, and whether results alternate. If
    one tensor holds gate and up, its two halves alternate."""

    name: str
    tensors: tuple[str, ...]
    columns: int
    widths: tuple[int, ...]
    interleaved: bool = False
    experts: int = 1

    @property
    def edges(self) -> tuple[int, int]:
        first, second = (*self.widths[:-1], NEVER, NEVER)[:2]
        if self.interleaved:
            return NEVER, NEVER
        return first, first + second if len(self.widths) > 2 else NEVER

    @property
    def alternate(self) -> bool:
        """Whether targets alternate, so that a result's parity is its target."""
        return self.interleaved and len(self.tensors) == 2

    def place(self, target: int) -> tuple[int, int]:
        """A target's results: index of the first, and stride."""
        return (target, 2) if self.interleaved else (sum(self.widths[:target]), 1)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """One tensor's pair in a `Low`: rows [row, row + R) of a, and columns first, first + step, … of b."""

    tensor: str
    row: int
    first: int
    step: int
    count: int


@dataclass(frozen=True, slots=True)
class Low:
    """The low-rank product added to the results of one group."""

    rank: int
    targets: int
    width: int  # N
    a: Matrix  # F32 [T·R, K]
    b: Binding  # [R, N]
    scales: Binding  # [T·R], or [rows, scale_step] of which T·R are this group's
    edges: tuple[int, int]
    interleaved: bool
    places: tuple[TensorPlace, ...]
    experts: int = 1
    meeting: Span | None = None  # [FEW, z], for a dispatch that computes its own z (kernels/meeting.wgsl)
    scale_step: int = 0  # from one row's scales to the next one's; 0: all rows have the same

    @property
    def columns(self) -> int:
        """Columns of z."""
        return self.targets * self.rank

    @property
    def shares(self) -> int:
        return z_shares(self.a.columns)

    def from_row(self, first: int) -> "Low":
        """For the rows from `first` on."""
        if not self.scale_step or not first:
            return self
        assert isinstance(self.scales, Span)
        skipped = 4 * first * self.scale_step
        span = Span(self.scales.buffer, self.scales.offset + skipped, self.scales.size - skipped)
        return replace(self, scales=span)


@dataclass(slots=True)
class Lows:
    """The `Low` of each layer's groups that have one. `scales` holds one setting, or one for each of `rows`; `entries`
    map positions in a setting to adapters."""

    layers: tuple[dict[str, Low], ...]
    entries: list["ScaleEntry"]
    scales: Buffer | None
    embedding: "Table | None" = None
    head: Low | None = None
    slots: int = 1  # experts per row
    meetings: Buffer | None = None  # all meetings; a pass of a few rows clears it first
    rows: int = 0  # the most rows of a pass whose rows have settings of their own; 0: all have the same

    def of(self, layer: int, group: str) -> Low | None:
        return self.layers[layer].get(group)

    @property
    def columns(self) -> int:
        """Columns of the widest z, including its shares."""
        lows = [*(low for layer in self.layers for low in layer.values()), *([self.head] if self.head else [])]
        return max((low.columns * (self.slots if low.experts > 1 else low.shares) for low in lows), default=0)

    def set_scales(self, device: Device, scales: Mapping[str, float], row: int = 0) -> None:
        """Sets the adapters' scales, for one row if rows have their own; unnamed ones are off. Recorded tapes stay
        valid."""
        if self.scales is None:
            return
        assert row < max(self.rows, 1)
        size = self.scales.size // max(self.rows, 1)
        values = array("f", bytes(size))
        for entry in self.entries:
            value = entry.scale * scales.get(entry.adapter, 0.0)
            values[entry.first : entry.first + entry.count] = array("f", [value]) * entry.count
        device.write(self.scales, row * size, values.tobytes())

    def by_row(self, ledger: Ledger, rows: int) -> "Lows":
        """The same adapters for passes of up to `rows` rows that each have a setting of their own, all off at first."""
        assert not self.rows
        if self.scales is None:
            return replace(self, rows=rows)
        one, limits = self.scales.size, ledger.device.limits
        if rows * one > min(limits.binding, limits.buffer):
            raise AdapterError(
                f"the adapters' scales for {rows} sequences take {rows * one} bytes, more than this GPU binds at once. "
                "Load fewer adapters, or some of lower rank."
            )
        buffer = ledger.buffer(rows * one, "adapter scales by row")

        def spread(scales: Binding) -> Span:
            """From the first row's scales to the last one's."""
            assert isinstance(scales, Span)
            return Span(buffer, scales.offset, (rows - 1) * one + scales.size)

        def own(low: Low) -> Low:
            # Meetings know one setting for all rows, so z has a dispatch of its own here.
            return replace(low, scales=spread(low.scales), scale_step=one // 4, meeting=None)

        table = self.embedding
        return replace(
            self,
            layers=tuple({name: own(low) for name, low in layer.items()} for layer in self.layers),
            scales=buffer,
            embedding=replace(table, scales=spread(table.scales), scale_step=one // 4) if table else None,
            head=own(self.head) if self.head else None,
            meetings=None,
            rows=rows,
        )


@dataclass(frozen=True, slots=True)
class Table:
    """Added to a token's embedding: √d · Σ_j scales[r, j] · rows[token, j] · b[j]."""

    rank: int
    rows: Binding  # [vocab, R]
    b: Binding  # [R, width]
    scales: Binding  # [R], or [rows, scale_step]
    scale_step: int = 0


@dataclass(frozen=True, slots=True)
class ScaleEntry:
    """Scales [first, first + count) belong to this adapter, for one tensor: its own scale · the caller's."""

    adapter: str
    first: int
    count: int
    scale: float


def groups(layer: TextLayer, config: Config) -> list[Group]:
    """The groups of a layer that can be adapted."""
    c, block = layer.config, f"blk.{layer.config.index}."
    heads, keys = c.heads * c.head_dim, c.kv_heads * c.head_dim
    own = 0 if c.donor is not None else 2 if c.has_v else 1
    qkv = tuple(block + f"attn_{name}.weight" for name in "qkv"[: 1 + own])
    gate_up = (block + "ffn_gate.weight", block + "ffn_up.weight")
    found = [
        Group("qkv", qkv, config.width, (heads, keys, keys)[: 1 + own]),
        Group("o", (block + "attn_output.weight",), heads, (config.width,)),
        Group("gate_up", gate_up, config.width, (c.ffn_width,) * 2, interleaved=len(layer.ffn.gate_up) == 1),
        Group("down", (block + "ffn_down.weight",), c.ffn_width, (config.width,)),
    ]
    if layer.per_layer:
        found.append(Group("ple_gate", (block + "inp_gate.weight",), config.width, (config.ple_dim,)))
        found.append(Group("ple_projection", (block + "proj.weight",), config.ple_dim, (config.width,)))
    return found + (_expert_groups(layer, layer.experts, config) if layer.experts else [])


def _expert_groups(layer: TextLayer, experts: Experts, config: Config) -> list[Group]:
    block, width, count = f"blk.{layer.config.index}.", config.expert_width, config.expert_count
    gate, up = block + "ffn_gate_exps.weight", block + "ffn_up_exps.weight"
    down = Group("expert_down", (block + "ffn_down_exps.weight",), width, (config.width,), experts=count)
    if layer.config.fused_experts:
        both = block + "ffn_gate_up_exps.weight"
        return [Group("expert_gate_up", (both,), config.width, (2 * width,), interleaved=True, experts=count), down]
    if len(experts.gate_up) == 1:
        widths = (width, width)
        return [Group("expert_gate_up", (gate, up), config.width, widths, interleaved=True, experts=count), down]
    apart = [("expert_gate", gate), ("expert_up", up)]
    return [*(Group(name, (tensor,), config.width, (width,), experts=count) for name, tensor in apart), down]


# -- in memory owned by the caller


def lows_over(
    weights: TextWeights, rank: int, targets: Collection[str], place: Callable[[int], Span], scales: Binding
) -> Lows:
    """Lays out an adapter of one rank on the targets ("attn_q", "ffn_gate", …) of every layer.

    `place` allocates a number of bytes, for each group first a's, then b's. `scales` holds at least `most_rows` numbers
    and serves all groups. If only some tensors of a group are targets, the others stay zero, since their gradients are
    zero, too.
    """
    layers = []
    for layer in weights.layers:
        made: dict[str, Low] = {}
        for group in groups(layer, weights.config):
            wanted = [name for name in group.tensors if name.split(".")[2] in targets]
            if wanted:
                rows, width = rank * len(group.tensors), sum(group.widths)
                a, b = place(4 * rows * group.columns), place(4 * rank * width)
                made[group.name] = _low(group, rank, a, b, scales, wanted)
        layers.append(made)
    return Lows(tuple(layers), [], None)


def z_shares(columns: int) -> int:
    """Partial sums per number of z for a few rows, added up in the product with b: reading all of a long row in one
    workgroup would take too long."""
    return -(-columns // Z_SHARE)


def meets(device: Device) -> bool:
    """Whether, for a few rows, the dispatch that needs z computes it, which saves a dispatch per group."""
    return device.in_order and device.limits.storage_buffers >= MOST_BINDINGS and not device.compact


def most_rows(rank: int) -> int:
    """The most rows of any group's `a`."""
    return 3 * rank


def _low(
    group: Group,
    rank: int,
    a: Span,
    b: Binding,
    scales: Binding,
    wanted: Collection[str],
    meeting: Span | None = None,
) -> Low:
    rows = rank * len(group.tensors) * group.experts
    places = [
        TensorPlace(name, rank * target, *group.place(target), group.widths[target])
        for target, name in enumerate(group.tensors)
        if name in wanted
    ]
    matrix = Matrix("F32", rows, group.columns, (MatrixPart(0, rows, a.buffer, a, None),))
    width = sum(group.widths)
    return Low(
        rank=rank,
        targets=len(group.tensors),
        width=width,
        a=matrix,
        b=b,
        scales=scales,
        edges=group.edges,
        interleaved=group.alternate,
        places=tuple(places),
        experts=group.experts,
        meeting=meeting,
    )


# -- from files


async def load_adapters(ledger: Ledger, weights: TextWeights, adapters: Sequence[AdapterFile]) -> Lows:
    """Uploads the adapters, all switched off; on failure the ledger is freed. The caller has checked that they fit."""
    try:
        lows = _Loader(ledger, adapters).load(weights)
        await ledger.device.confirm()
        return lows
    except BaseException:
        ledger.free()
        raise


class _Loader:
    def __init__(self, ledger: Ledger, adapters: Sequence[AdapterFile]) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.adapters = adapters
        self.entries: list[ScaleEntry] = []
        self.scales: Buffer | None = None
        self.placed = 0  # bytes of the scales in use
        self.meetings: Buffer | None = None
        self.met = 0  # bytes of the meetings in use

    def load(self, weights: TextWeights) -> Lows:
        config = weights.config
        layers = [groups(layer, config) for layer in weights.layers]
        head = Group("head", (OUTPUT,), config.width, (config.vocab_size,))
        table = Group("embedding", (EMBEDDING,), config.width, (config.vocab_size,))
        everything = [*(group for layer in layers for group in layer), head, table]
        self._check_all_used(everything)
        room = sum(_aligned(4 * len(group.tensors) * sum(self._ranks(group))) for group in everything)
        if room:
            self.scales = self.ledger.buffer(room, "adapter scales")
        meetings = sum(_aligned(self._meeting_bytes(group)) for layer in layers for group in layer)
        if meetings and meets(self.device):
            self.meetings = self.ledger.buffer(meetings, "adapter meetings")
        made = tuple(
            {group.name: low for group in layer if (low := self._low(group, self._place_meeting(group))) is not None}
            for layer in layers
        )
        output, embedding = self._low(head), self._table(table)
        slots = config.experts_used or 1
        return Lows(made, self.entries, self.scales, embedding, output, slots, self.meetings)

    def _check_all_used(self, everything: Sequence[Group]) -> None:
        """Refuses an adapter if any part of it would be ignored."""
        known = {name for group in everything for name in group.tensors}
        for adapter in self.adapters:
            for name in adapter.pairs.keys() - known:
                raise AdapterError(f"{adapter.name} changes {name}, which wgemma cannot adapt in this model.")

    def _ranks(self, group: Group) -> list[int]:
        """Each adapter's share of R in a group."""
        own = ([adapter.pairs.get(name) for name in group.tensors] for adapter in self.adapters)
        return [max((pair.rank for pair in pairs if pair), default=0) for pairs in own]

    def _low(self, group: Group, meeting: Span | None = None) -> Low | None:
        """The adapters' pairs concatenated; None if there are none."""
        ranks = self._ranks(group)
        rank = sum(ranks)
        if not rank:
            return None
        a, b = bytearray(), array("f", bytes(4 * group.experts * rank * sum(group.widths)))
        for expert in range(group.experts):
            for target, name in enumerate(group.tensors):
                row = expert * rank  # of b
                for adapter, room in zip(self.adapters, ranks, strict=True):
                    pair = adapter.pairs.get(name)
                    if pair is not None:
                        size = pair.rank * pair.columns
                        a += memoryview(pair.a)[expert * size : (expert + 1) * size].cast("B")
                        self._spread(b, pair, expert, group, target, row)
                    a += bytes(4 * group.columns * (room - (pair.rank if pair else 0)))
                    row += room
        scales = self._place_scales(group, ranks)
        first, second = self._put(group, a, b)
        return _low(group, rank, first, second, scales, group.tensors, meeting)

    def _spread(self, b: "array[float]", pair: Pair, expert: int, group: Group, target: int, row: int) -> None:
        """Copies column j of an expert's B into row `row` + j of b."""
        width, size = sum(group.widths), pair.rows * pair.rank
        first, step = group.place(target)
        halves = 2 if group.interleaved and not group.alternate else 1
        count = pair.rows // halves
        for j in range(pair.rank):
            column = pair.b[expert * size + j : (expert + 1) * size : pair.rank]
            for half in range(halves):
                begin = (row + j) * width + first + half
                b[begin : begin + step * (count - 1) + 1 : step] = column[half * count : (half + 1) * count]

    def _table(self, group: Group) -> Table | None:
        """The same for the embedding, where a token selects a row of B."""
        ranks = self._ranks(group)
        rank = sum(ranks)
        if not rank:
            return None
        rows, b, at = array("f", bytes(4 * group.widths[0] * rank)), array("f"), 0
        for adapter in self.adapters:
            if (pair := adapter.pairs.get(EMBEDDING)) is not None:
                b += pair.a
                for j in range(pair.rank):
                    rows[at + j :: rank] = pair.b[j :: pair.rank]
                at += pair.rank
        scales = self._place_scales(group, ranks)
        first, second = self._put(group, rows, b)
        return Table(rank, first, second, scales)

    def _place_scales(self, group: Group, ranks: Sequence[int]) -> Span:
        """Allocates the scales of a group and records which adapter each belongs to."""
        assert self.scales is not None
        rank, begin = sum(ranks), self.placed
        size = 4 * rank * len(group.tensors)
        for target, name in enumerate(group.tensors):
            first = begin // 4 + rank * target
            for adapter, room in zip(self.adapters, ranks, strict=True):
                if (pair := adapter.pairs.get(name)) is not None:
                    self.entries.append(ScaleEntry(adapter.name, first, pair.rank, pair.scale))
                first += room
        self.placed += _aligned(size)
        return Span(self.scales, begin, size)

    def _meeting_bytes(self, group: Group) -> int:
        """Bytes for z of a few rows; experts compute theirs beforehand."""
        if group.experts > 1:
            return 0
        return 4 * FEW * sum(self._ranks(group)) * len(group.tensors) * z_shares(group.columns)

    def _place_meeting(self, group: Group) -> Span | None:
        size = self._meeting_bytes(group)
        if self.meetings is None or not size:
            return None
        begin = self.met
        self.met += _aligned(size)
        return Span(self.meetings, begin, size)

    def _put(self, group: Group, *numbers: "bytearray | array[float]") -> list[Span]:
        """Uploads the numbers into one buffer."""
        limits, sizes = self.device.limits, [memoryview(some).nbytes for some in numbers]
        if max(sizes) > limits.binding or sum(map(_aligned, sizes)) > limits.buffer:
            raise AdapterError(
                f"the adapters of {group.tensors[0]} take {max(sizes)} bytes together, more than this GPU binds at "
                "once. Load fewer, or some of lower rank."
            )
        buffer, spans, at = self.ledger.buffer(sum(map(_aligned, sizes)), "adapter"), [], 0
        for some, size in zip(numbers, sizes, strict=True):
            self.device.write(buffer, at, memoryview(some).cast("B"))
            spans.append(Span(buffer, at, size))
            at += _aligned(size)
        return spans


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
