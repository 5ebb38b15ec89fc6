"""The forward pass, recorded: one function per layer, the same for one row and for hundreds.

`Stream` is the residual stream while it is being recorded: the last block's output is not added yet, because the next
matmul does that on its way in (see model/matmul.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from wgemma.errors import OutOfMemory
from wgemma.gpu.device import Binding, Buffer, Device, Span
from wgemma.gpu.tape import Tape
from wgemma.model import experts
from wgemma.model.adapters import Low, Lows, Table
from wgemma.model.attention import SPLITS, look, put_together, store
from wgemma.model.attention_tile import partial_room
from wgemma.model.cache import PAGE, Places
from wgemma.model.direct import DirectMatmuls
from wgemma.model.matmul import Input, Joined, Matmuls, Precision, Residual, Result, rounds_many
from wgemma.model.planes import PLANES
from wgemma.model.text import Experts, Layer, TextWeights
from wgemma.model.weights import Matrix, Part, RowOrder, repack

# A row of an image or a sound has no token but a number from here on (kernels/embed.wgsl). Whoever replays a pass has
# put its hidden state into `h` before, unscaled; where a token is needed all the same, PAD stands in.
SOFT = 1 << 30
PAD = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass on its way onto a tape: how many rows, where they are told, and a cache of at most `depth`."""

    tape: Tape
    rows: int
    row_buffer: Buffer
    cache: Places
    depth: int
    lows: Lows | None = None  # the adapters at work

    def low(self, layer: Layer, group: str) -> Low | None:
        return self.lows.of(layer.config.index, group) if self.lows else None


@dataclass(slots=True)
class Stream:
    """h is the residual stream without `pending`, the output of the last block; `scale` multiplies their sum."""

    h: Buffer
    spare: Buffer
    pending: Buffer
    scale: float = 1.0

    def input(self, norms: Buffer, x: Buffer, *, norm: bool = True) -> Residual:
        """The sum, as the next matmul makes it; `x` is where many rows have theirs."""
        return Residual(self.h, self.pending, norms, self.spare, x, self.scale, norm)

    def advance(self) -> None:
        """The sum now lies in what was the spare buffer."""
        self.h, self.spare, self.scale = self.spare, self.h, 1.0


# What is not needed at the same time shares its room.
SHARED = {
    "x": ("attention x", "ffn x", "head x"),
    "o": ("attention o", "ffn o", "per-layer o"),
    "act": ("gate",),
    "z": ("z qkv", "z o", "z gate_up", "z down", "z ple_gate", "z ple_projection", "z head", "z experts"),
}


class Scratch:
    """The activations of up to `rows` rows; what is only needed between two kernels, of `step` rows at a time. `z` has
    as many columns as the adapters want; `rounds` makes room for inputs in bytes."""

    def __init__(
        self, device: Device, weights: TextWeights, rows: int, step: int, *, z: int = 0, rounds: bool = False
    ) -> None:
        config = weights.config
        d = config.width
        layers = config.layers
        heads = max(layer.heads * layer.head_dim for layer in layers)
        wide = max(2 * layer.ffn_width for layer in layers)
        states = max(layer.heads * (layer.head_dim + 2) for layer in layers)
        sizes = {
            "h": rows * d,
            "h2": rows * d,
            "o": rows * d,
            "zeros": rows * d,
            "x": 3 * (rows + 1) * d if config.expert_count else rows * d,
            "qkv": rows * max(layer.attention.width for layer in weights.layers),
            "attended": rows * heads,
            "partial": max(SPLITS * states, *(partial_room(device, layer, rows) for layer in layers)),
            "wide": min(rows, step) * wide,
            "act": rows * max(wide // 2, config.ple_dim),
        }
        if config.ple_dim:
            columns = config.ple_dim * len(layers)
            sizes |= {"table": rows * columns, "projected": rows * columns, "ple": rows * columns}
            sizes |= {"gated": rows * config.ple_dim}
        if config.expert_count:
            sizes |= experts.room(config, rows)
        if z:
            sizes["z"] = rows * z
        if rounds:
            sizes["rounded"] = rows * max(d, wide // 2, config.experts_used * config.expert_width) * 12 // 32
        self.rows = rows
        self.step = step
        self.z = z
        self.buffers: dict[str, Buffer] = {}
        try:
            for name, size in sizes.items():
                self.buffers[name] = device.buffer(4 * size, name)
        except OutOfMemory:
            self.free(device)
            raise
        self.nbytes = 4 * sum(sizes.values())
        self._homes = {name: home for home, names in SHARED.items() for name in (home, *names)}

    def __getitem__(self, name: str) -> Buffer:
        return self.buffers[self._homes.get(name, name)]

    @property
    def rounded(self) -> Buffer | None:
        """Room for a product's input in bytes, if there is any."""
        return self.buffers.get("rounded")

    @property
    def parts(self) -> Buffer | None:
        """Room for a product's sums in parts, if there is any: where gate and up go, which are not needed meanwhile."""
        rooms = [self.buffers[name] for name in ("wide", "expert_wide") if name in self.buffers]
        return max(rooms, key=lambda room: room.size)

    async def widen(self, device: Device, z: int) -> None:
        """At least so many columns of z."""
        if z <= self.z:
            return
        wider = device.buffer(4 * self.rows * z, "z")
        try:
            await device.confirm()
        except BaseException:
            device.free(wider)
            raise
        if "z" in self.buffers:
            device.free(self.buffers["z"])
        self.nbytes += 4 * self.rows * (z - self.z)
        self.buffers["z"], self.z = wider, z

    def free(self, device: Device) -> None:
        for buffer in self.buffers.values():
            device.free(buffer)
        self.buffers.clear()


class Decoder:
    """Records the text model's forward pass onto tapes."""

    keeps = False  # what the experts' activations begin with, too: training needs it again

    def __init__(self, device: Device, weights: TextWeights, rows: int, precision: Precision = "exact") -> None:
        self.device = device
        self.weights = weights
        self.precision = precision
        self.config = weights.config
        self._take(self._scratch(rows, rows))
        self.raw_table: Part | None = None  # planes of the rows the host fetched, where the table is not on the GPU
        self.raw_rows: Buffer | None = None
        inputs = weights.inputs
        if inputs is not None and inputs.table is None:
            self._make_room_for_fetched_rows(rows, device.buffer)

    def _scratch(self, rows: int, step: int, z: int = 0) -> Scratch:
        rounds = self.precision == "fast" and rounds_many(self.device)
        return Scratch(self.device, self.weights, rows, step, z=z, rounds=rounds)

    def _take(self, scratch: Scratch) -> None:
        self.scratch = scratch
        kind = DirectMatmuls if self.device.compact else Matmuls
        self.matmuls = kind(self.device, self.config.eps, self.precision)

    async def make_room(self, rows: int) -> None:
        """Scratch for passes of so many rows. Recordings made before are useless afterwards: `scratch.rows` tells."""
        before = self.scratch
        if rows <= before.rows:
            return
        before.free(self.device)
        try:
            self._take(self._scratch(rows, before.step // 2 * 2, before.z))
            await self.device.confirm()
        except OutOfMemory as error:
            if self.scratch is not before:
                self.scratch.free(self.device)
            self._take(self._scratch(before.rows, before.step, before.z))
            raise OutOfMemory(f"an image of up to {rows} tokens is too large here: {error} Lower its budget.") from None

    async def make_room_for_adapters(self, lows: Lows) -> None:
        """Scratch for what adapters compute. Recordings made with others before are useless afterwards."""
        await self.scratch.widen(self.device, lows.columns)

    def _make_room_for_fetched_rows(self, rows: int, make: Callable[[int, str], Buffer]) -> None:
        inputs = self.weights.inputs
        assert inputs is not None
        planes, columns = PLANES[inputs.tensor.type], inputs.tensor.shape[0]
        edge = -(-planes.code_bytes(rows, columns) // 256) * 256
        scale_bytes = planes.scale_bytes(rows, columns)
        buffer = make(edge + scale_bytes, "fetched per-layer rows")
        scales = Span(buffer, edge, scale_bytes) if scale_bytes else None
        self.raw_table = Part(0, rows, buffer, Span(buffer, 0, planes.code_bytes(rows, columns)), scales)
        self.raw_rows = make(rows * inputs.tensor.format.row_nbytes(columns), "per-layer rows, raw")

    def buffers(self) -> list[Buffer]:
        """Everything this decoder allocated."""
        fetched = [self.raw_table.buffer] if self.raw_table else []
        return [*self.scratch.buffers.values(), *fetched, *([self.raw_rows] if self.raw_rows else [])]

    # -- the whole pass

    def record(self, p: Pass, layers: int | None = None) -> Stream:
        """From the rows' tokens to the residual stream after the last layer, or after fewer layers."""
        stream = Stream(self.scratch["h"], self.scratch["h2"], self.scratch["zeros"])
        if p.lows and p.lows.meetings and self._meets(p):
            count = p.lows.meetings.size // 4
            p.tape.run("clear", [min(64, -(-count // 256))], {"words": p.lows.meetings}, {"count": count})
        self.embed(p.tape, p.rows, p.row_buffer, self.weights.embedding, stream.h, self.config.width**0.5)
        if p.lows and p.lows.embedding:
            self._embed_low(p, p.lows.embedding, stream.h)
        if self.config.ple_dim:
            self._per_layer_inputs(p, stream)
        for index in range(len(self.weights.layers) if layers is None else layers):
            self.layer(p, index, stream)
        return stream

    def layer(self, p: Pass, index: int, stream: Stream) -> None:
        layer = self.weights.layers[index]
        self._attend(p, layer, stream)
        if layer.experts:
            self._feed_experts(p, layer, layer.experts, stream)
        else:
            self._feed_forward(p, layer, stream)
        if layer.per_layer:
            width, count = self.config.ple_dim, len(self.weights.layers)
            gated = Result(
                self.scratch["gated"],
                then="PLE",
                side=self.scratch["ple"],
                side_stride=width * count,
                side_offset=width * index,
                bare=self.scratch["gate"],
                parts=self.scratch.parts,
            )
            source = stream.input(layer.per_layer.norms, self.scratch["x"], norm=False)
            self._linear(p, layer, "ple_gate", layer.per_layer.gate, source, gated)
            stream.advance()
            output = self.scratch["per-layer o"]
            projection = layer.per_layer.projection
            self._linear(p, layer, "ple_projection", projection, self.scratch["gated"], Result(output))
            stream.pending = output
        stream.scale = layer.scale

    def _linear(self, p: Pass, layer: Layer, group: str, matrix: Matrix, source: Input, result: Result) -> None:
        """The product with a matrix that is a group of its own, and what adapters add to it."""
        result = self._adapted(p, layer, group, result)
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(p.tape, result.low, p.rows, source, result.z)
        self.matmuls.linear(p.tape, matrix, p.rows, source, result)

    def _adapted(self, p: Pass, layer: Layer, group: str, result: Result) -> Result:
        """A result to which adapters add theirs, where there are any."""
        low = p.low(layer, group)
        return result if low is None else replace(result, low=low, z=self._z(p, low, group))

    def _meets(self, p: Pass) -> bool:
        """Whether a pass begins by clearing the meetings of its adapters, if they have any, and so can use them."""
        return p.rows <= self.matmuls.few

    def _z(self, p: Pass, low: Low, group: str) -> Binding:
        """Where z goes."""
        return low.meeting if low.meeting and self._meets(p) else self.scratch[f"z {group}"]

    def head(self, p: Pass, stream: Stream, picked: Buffer, logits: Buffer) -> None:
        """The logits of the row that the GPU names in `picked`, soft-capped."""
        source = stream.input(self.weights.output_norms, self.scratch["head x"])
        self.matmuls.picked(p.tape, self.weights.head, source, picked, 1, self._logits(logits, p.lows))

    def head_of_all(self, p: Pass, stream: Stream, logits: Buffer) -> None:
        """Logits [rows, vocab] of every row, soft-capped."""
        source = stream.input(self.weights.output_norms, self.scratch["head x"])
        self._head(p.tape, p.rows, source, self._logits(logits, p.lows))

    def settle(self, p: Pass, stream: Stream) -> None:
        """Ends a pass of many rows before the logits: `head_of_some` goes on from there, some rows at a time."""
        self.matmuls.settle(p.tape, p.rows, stream.input(self.weights.output_norms, self.scratch["head x"]))

    def head_of_some(self, tape: Tape, first: int, rows: int, logits: Buffer, lows: Lows | None = None) -> None:
        """Logits [rows, vocab] of the rows from `first` on of a pass that was settled."""
        source = _rows_of(self.scratch["head x"], first, rows, self.config.width)
        self._head(tape, rows, source, self._logits(logits, lows))

    def _head(self, tape: Tape, rows: int, source: Input, result: Result) -> None:
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(tape, result.low, rows, source, result.z)
        self.matmuls.linear(tape, self.weights.head, rows, source, result)

    def _logits(self, logits: Buffer, lows: Lows | None) -> Result:
        low = lows.head if lows else None
        z = self.scratch["z head"] if low else None
        return Result(logits, then="SOFTCAP", cap=self.config.softcap or 0.0, low=low, z=z)

    # -- what goes in

    def embed(
        self, tape: Tape, rows: int, row_buffer: Buffer, matrix: Matrix, y: Buffer, scale: float, *, pads: bool = False
    ) -> None:
        """y = scale · the matrix's rows of the rows' tokens; of soft rows PAD's with `pads`, else y is left alone."""
        for part in matrix.parts:
            bindings = {**part.bindings(), "rows": row_buffer, "y": y}
            params = {"blocks": matrix.blocks, "first": part.first, "count": part.rows, "scale": scale}
            params |= {"by_index": False, "pads": pads}
            tape.run("embed", [-(-matrix.blocks // 64), rows], bindings, params, {"TYPE": matrix.planes.reader})

    def _embed_low(self, p: Pass, table: Table, y: Buffer) -> None:
        """What adapters add to the tokens' embedding."""
        width = self.config.width
        bindings: dict[str, Binding] = {"rows": p.row_buffer, "table": table.rows, "b": table.b, "scales": table.scales}
        params = {"columns": width, "rank": table.rank, "scale": width**0.5}
        p.tape.run("low_embed", [-(-width // 64), p.rows], {**bindings, "y": y}, params)

    def _per_layer_inputs(self, p: Pass, stream: Stream) -> None:
        inputs = self.weights.inputs
        assert inputs is not None
        scratch, width = self.scratch, self.config.ple_dim
        root = width**0.5
        if inputs.table is not None:
            self.embed(p.tape, p.rows, p.row_buffer, inputs.table, scratch["table"], root, pads=True)
        else:
            self._embed_fetched(p, root)
        self.matmuls.linear(p.tape, inputs.projection, p.rows, stream.h, Result(scratch["projected"]))
        bindings = {"c": scratch["projected"], "table": scratch["table"], "norm": inputs.norm, "ple": scratch["ple"]}
        params = {"p": width, "eps": self.config.eps, "scale": self.config.width**-0.5}
        p.tape.run("ple", [len(self.weights.layers), p.rows], bindings, params, {"THREADS": 64})

    def _embed_fetched(self, p: Pass, scale: float) -> None:
        inputs = self.weights.inputs
        assert inputs is not None and self.raw_table is not None and self.raw_rows is not None
        blocks = inputs.tensor.shape[0] // 32
        planes = PLANES[inputs.tensor.type]
        if planes.halves and self.raw_table.scales is not None:
            scales = self.raw_table.scales
            p.tape.run("clear", [1], {"words": scales}, {"count": scales.size // 4})
        repack(p.tape, inputs.tensor, RowOrder(), self.raw_table, self.raw_rows, 0, p.rows)
        bindings = {**self.raw_table.bindings(), "rows": p.row_buffer, "y": self.scratch["table"]}
        constants = {"TYPE": planes.reader}
        params = {"blocks": blocks, "first": 0, "count": p.rows, "by_index": True, "scale": scale, "pads": False}
        p.tape.run("embed", [-(-blocks // 64), p.rows], bindings, params, constants)

    # -- attention

    def _attend(self, p: Pass, layer: Layer, stream: Stream) -> None:
        attention, config, scratch = layer.attention, layer.config, self.scratch
        source: Input = stream.input(layer.attention_norms, scratch["attention x"])
        result = Result(scratch["qkv"], attention.width, fine=True, parts=scratch.parts)
        result = self._adapted(p, layer, "qkv", result)
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(p.tape, result.low, p.rows, source, result.z)
        self.matmuls.side_by_side(p.tape, attention.qkv, p.rows, source, result)
        stream.advance()
        owner = config.index if config.donor is None else config.donor
        segments = [segment for segment in p.cache.segments[owner] if segment.first < p.depth or config.sliding]
        if config.donor is None:
            # A depth is at most twice what is needed, so the rows cannot lie in segments that end long before it.
            nearest = 0 if config.sliding or p.depth <= PAGE else p.depth // 2 - p.rows
            near = [segment for segment in segments if segment.first + segment.count > nearest]
            store(p, self.weights, scratch, layer, near)
        pieces = look(p, self.weights, scratch, layer, segments, join=False)
        self._put_out(p, layer, pieces)
        stream.pending = scratch["attention o"]

    def _put_out(self, p: Pass, layer: Layer, pieces: int) -> None:
        """The output projection of what was found, which may lie in several pieces."""
        config, matrix = layer.config, layer.attention.output
        result = Result(self.scratch["attention o"], fine=True, parts=self.scratch.parts)
        if pieces and config.sliding and self.matmuls.joins(matrix, p.rows, config.heads, pieces):
            joined = Joined(self.scratch["partial"], self.scratch["attended"], config.heads, config.head_dim, pieces)
            self.matmuls.joined(p.tape, matrix, p.rows, joined, self._adapted(p, layer, "o", result))
            return
        if pieces:
            put_together(p, self.scratch, config, pieces)
        self._linear(p, layer, "o", matrix, self.scratch["attended"], result)

    # -- feed-forward

    def _feed_forward(self, p: Pass, layer: Layer, stream: Stream) -> None:
        scratch = self.scratch
        self._geglu(p, layer, stream.input(layer.ffn_norms, scratch["ffn x"]), scratch["act"])
        stream.advance()
        result = Result(scratch["ffn o"], rounded=scratch.rounded, parts=scratch.parts)
        self._linear(p, layer, "down", layer.ffn.down, scratch["act"], result)
        stream.pending = scratch["ffn o"]

    def _geglu(self, p: Pass, layer: Layer, source: Input, y: Buffer) -> None:
        step, tape = self.scratch.step, p.tape
        if p.rows <= step:
            self._geglu_step(p, layer, p.rows, source, y)
            return
        x = self.matmuls.settle(tape, p.rows, source) if isinstance(source, Residual) else source
        for first in range(0, p.rows, step):
            rows = min(step, p.rows - first)
            some = _rows_of(x, first, rows, self.config.width)
            self._geglu_step(p, layer, rows, some, _rows_of(y, first, rows, layer.config.ffn_width))

    def _geglu_step(self, p: Pass, layer: Layer, rows: int, source: Input, y: Binding) -> None:
        tape, gate_up, wide = p.tape, layer.ffn.gate_up, self.scratch["wide"]
        low, z = p.low(layer, "gate_up"), None
        if low is not None:
            z = self._z(p, low, "gate_up")
            source = self.matmuls.project(tape, low, rows, source, z)
        if len(gate_up) == 1:
            result = Result(y, then="GEGLU", bare=wide, low=low, z=z, rounded=self.scratch.rounded)
            self.matmuls.linear(tape, gate_up[0], rows, source, result)
            return
        # Two types: gate to `wide`, up behind it, then their product.
        width = gate_up[0].rows
        result = Result(wide, 2 * width, low=low, z=z, rounded=self.scratch.rounded)
        self.matmuls.side_by_side(tape, gate_up, rows, source, result)
        tape.run("activate", [-(-width // 256), rows], {"x": wide, "y": y}, {"n": width}, {"APART": True})

    def _feed_experts(self, p: Pass, layer: Layer, asked: Experts, stream: Stream) -> None:
        scratch, config = self.scratch, self.config
        dense, inner, router = experts.inputs(p, config, scratch, asked, stream)
        self._geglu(p, layer, dense, scratch["act"])
        result = Result(scratch["dense"], rounded=scratch.rounded, parts=scratch.parts)
        self._linear(p, layer, "down", layer.ffn.down, scratch["act"], result)
        experts.route(p, self.matmuls, config, scratch, asked, router)
        experts.ask(p, self.matmuls, config, scratch, layer, asked, inner, keeps=self.keeps)
        experts.join(p, config, scratch, asked)
        stream.pending = scratch["ffn o"]


def _rows_of(bound: Binding, first: int, rows: int, width: int) -> Span:
    """Some rows of f32 out of many."""
    whole = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
    return Span(whole.buffer, whole.offset + 4 * first * width, 4 * rows * width)
