"""The forward pass, recorded: one function per layer, the same for one row and for hundreds.

`Stream` is the residual stream while it is being recorded: the last block's output is not added yet, because the next
matmul does that on its way in (see model/matmul.py).
"""

from dataclasses import dataclass
from typing import Any

from wgemma.errors import OutOfMemory
from wgemma.gpu.device import Binding, Buffer, Device, Span
from wgemma.gpu.tape import Tape
from wgemma.model.cache import PAGE, Cache, Segment
from wgemma.model.matmul import FEW, THREADS, Input, Matmuls, Residual, Result
from wgemma.model.planes import PLANES
from wgemma.model.text import Experts, Layer, TextWeights
from wgemma.model.weights import Matrix, Part, RowOrder, repack

SPLITS = 32  # a row's history is cut into at most so many pieces
SPLIT = 128  # of at least so many keys

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
    cache: Cache
    depth: int


@dataclass(slots=True)
class Stream:
    """h is the residual stream without `pending`, the output of the last block; `scale` multiplies their sum."""

    h: Buffer
    spare: Buffer
    pending: Buffer
    scale: float = 1.0

    def input(self, norms: Buffer, *, norm: bool = True) -> Residual:
        """The sum, as the next matmul makes it."""
        return Residual(self.h, self.pending, norms, self.spare, self.scale, norm)

    def advance(self) -> None:
        """The sum now lies in what was the spare buffer."""
        self.h, self.spare, self.scale = self.spare, self.h, 1.0


class Scratch:
    """The activations of up to `rows` rows; what is only needed between two kernels, of `step` rows at a time."""

    def __init__(self, device: Device, weights: TextWeights, rows: int, step: int) -> None:
        config = weights.config
        d, slots = config.width, config.experts_used
        layers = config.layers
        heads = max(layer.heads * layer.head_dim for layer in layers)
        wide = max(2 * layer.ffn_width for layer in layers)
        few = min(rows, FEW)
        states = max(layer.heads * (layer.head_dim + 2) for layer in layers)
        sizes = {
            "h": rows * d,
            "h2": rows * d,
            "o": rows * d,
            "zeros": rows * d,
            "x": 3 * (rows + 1) * d if config.expert_count else rows * d,
            "qkv": rows * max(layer.attention.width for layer in weights.layers),
            "attended": rows * heads,
            "partial": max(rows * states, few * SPLITS * states),
            "wide": min(rows, step) * wide,
            "act": rows * wide // 2,
        }
        if config.ple_dim:
            columns = config.ple_dim * len(layers)
            sizes |= {"table": rows * columns, "projected": rows * columns, "ple": rows * columns}
            sizes |= {"gated": rows * config.ple_dim}
        if config.expert_count:
            sizes |= {
                "scores": rows * config.expert_count,
                "chosen": rows * slots,
                "weights": rows * slots,
                "expert_wide": rows * slots * 2 * config.expert_width,
                "expert_act": rows * slots * config.expert_width,
                "routed": rows * slots * d,
            }
        self.rows = rows
        self.step = step
        self.buffers: dict[str, Buffer] = {}
        try:
            for name, size in sizes.items():
                self.buffers[name] = device.buffer(4 * size, name)
        except OutOfMemory:
            self.free(device)
            raise
        self.nbytes = 4 * sum(sizes.values())

    def __getitem__(self, name: str) -> Buffer:
        return self.buffers[name]

    def free(self, device: Device) -> None:
        for buffer in self.buffers.values():
            device.free(buffer)
        self.buffers.clear()


class Decoder:
    """Records the text model's forward pass onto tapes."""

    def __init__(self, device: Device, weights: TextWeights, rows: int) -> None:
        self.device = device
        self.weights = weights
        self.config = weights.config
        self._take(Scratch(device, weights, rows, rows))
        self.raw_table: Part | None = None  # planes of the rows the host fetched, where the table is not on the GPU
        self.raw_rows: Buffer | None = None
        inputs = weights.inputs
        if inputs is not None and inputs.table is None:
            self._make_room_for_fetched_rows(rows)

    def _take(self, scratch: Scratch) -> None:
        self.scratch = scratch
        self.matmuls = Matmuls(self.device, self.config.eps, scratch["wide"], scratch["x"])

    async def make_room(self, rows: int) -> None:
        """Scratch for passes of so many rows. Recordings made before are useless afterwards: `scratch.rows` tells."""
        before = self.scratch
        if rows <= before.rows:
            return
        before.free(self.device)
        try:
            self._take(Scratch(self.device, self.weights, rows, before.step // 2 * 2))
            await self.device.confirm()
        except OutOfMemory as error:
            if self.scratch is not before:
                self.scratch.free(self.device)
            self._take(Scratch(self.device, self.weights, before.rows, before.step))
            raise OutOfMemory(f"an image of up to {rows} tokens is too large here: {error} Lower its budget.") from None

    def _make_room_for_fetched_rows(self, rows: int) -> None:
        inputs = self.weights.inputs
        assert inputs is not None
        planes, columns = PLANES[inputs.tensor.type], inputs.tensor.shape[0]
        edge = -(-planes.code_bytes(rows, columns) // 256) * 256
        scale_bytes = planes.scale_bytes(rows, columns)
        buffer = self.device.buffer(edge + scale_bytes, "fetched per-layer rows")
        scales = Span(buffer, edge, scale_bytes) if scale_bytes else None
        self.raw_table = Part(0, rows, buffer, Span(buffer, 0, planes.code_bytes(rows, columns)), scales)
        self.raw_rows = self.device.buffer(rows * inputs.tensor.format.row_nbytes(columns), "per-layer rows, raw")

    def buffers(self) -> list[Buffer]:
        """Everything this decoder allocated."""
        fetched = [self.raw_table.buffer] if self.raw_table else []
        return [*self.scratch.buffers.values(), *fetched, *([self.raw_rows] if self.raw_rows else [])]

    # -- the whole pass

    def record(self, p: Pass, layers: int | None = None) -> Stream:
        """From the rows' tokens to the residual stream after the last layer, or after fewer layers."""
        stream = Stream(self.scratch["h"], self.scratch["h2"], self.scratch["zeros"])
        self.embed(p.tape, p.rows, p.row_buffer, self.weights.embedding, stream.h, self.config.width**0.5)
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
            )
            source = stream.input(layer.per_layer.norms, norm=False)
            self.matmuls.linear(p.tape, layer.per_layer.gate, p.rows, source, gated)
            stream.advance()
            output = Result(self.scratch["o"])
            self.matmuls.linear(p.tape, layer.per_layer.projection, p.rows, self.scratch["gated"], output)
        stream.scale = layer.scale

    def head(self, p: Pass, stream: Stream, picked: Buffer, logits: Buffer) -> None:
        """The logits of the row that the GPU names in `picked`, soft-capped."""
        source = stream.input(self.weights.output_norms)
        result = Result(logits, then="SOFTCAP", cap=self.config.softcap or 0.0)
        self.matmuls.picked(p.tape, self.weights.head, source, picked, 1, result)

    def head_of_all(self, p: Pass, stream: Stream, logits: Buffer) -> None:
        """Logits [rows, vocab] of every row, soft-capped."""
        source = stream.input(self.weights.output_norms)
        result = Result(logits, then="SOFTCAP", cap=self.config.softcap or 0.0)
        self.matmuls.linear(p.tape, self.weights.head, p.rows, source, result)

    def settle(self, p: Pass, stream: Stream) -> None:
        """Ends a pass of many rows before the logits: `head_of_some` goes on from there, some rows at a time."""
        self.matmuls.settle(p.tape, p.rows, stream.input(self.weights.output_norms))

    def head_of_some(self, tape: Tape, first: int, rows: int, logits: Buffer) -> None:
        """Logits [rows, vocab] of the rows from `first` on of a pass that was settled."""
        source = _rows_of(self.scratch["x"], first, rows, self.config.width)
        result = Result(logits, then="SOFTCAP", cap=self.config.softcap or 0.0)
        self.matmuls.linear(tape, self.weights.head, rows, source, result)

    # -- what goes in

    def embed(
        self, tape: Tape, rows: int, row_buffer: Buffer, matrix: Matrix, y: Buffer, scale: float, *, pads: bool = False
    ) -> None:
        """y = scale · the matrix's rows of the rows' tokens; of soft rows PAD's with `pads`, else y is left alone."""
        for part in matrix.parts:
            bindings = {**part.bindings(), "rows": row_buffer, "y": y}
            params = (matrix.blocks, part.first, part.rows, 0, scale, int(pads))
            tape.run("embed", [-(-matrix.blocks // 64), rows], bindings, params, {"TYPE": matrix.planes.reader})

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
        params = (width, self.config.eps, self.config.width**-0.5)
        p.tape.run("ple", [len(self.weights.layers), p.rows], bindings, params, {"THREADS": 64})

    def _embed_fetched(self, p: Pass, scale: float) -> None:
        inputs = self.weights.inputs
        assert inputs is not None and self.raw_table is not None and self.raw_rows is not None
        blocks = inputs.tensor.shape[0] // 32
        planes = PLANES[inputs.tensor.type]
        if planes.halves and self.raw_table.scales is not None:
            p.tape.run("clear", [1], {"words": self.raw_table.scales}, (self.raw_table.scales.size // 4,))
        repack(p.tape, inputs.tensor, RowOrder(), self.raw_table, self.raw_rows, 0, p.rows)
        bindings = {**self.raw_table.bindings(), "rows": p.row_buffer, "y": self.scratch["table"]}
        constants = {"TYPE": planes.reader}
        p.tape.run("embed", [-(-blocks // 64), p.rows], bindings, (blocks, 0, p.rows, 1, scale), constants)

    # -- attention

    def _attend(self, p: Pass, layer: Layer, stream: Stream) -> None:
        attention, config, scratch = layer.attention, layer.config, self.scratch
        source = stream.input(layer.attention_norms)
        self.matmuls.side_by_side(p.tape, attention.qkv, p.rows, source, scratch["qkv"], attention.width)
        stream.advance()
        owner = config.index if config.donor is None else config.donor
        segments = [segment for segment in p.cache.segments[owner] if segment.first < p.depth or config.sliding]
        if config.donor is None:
            # A depth is at most twice what is needed, so the rows cannot lie in segments that end long before it.
            nearest = 0 if config.sliding or p.depth <= PAGE else p.depth // 2 - p.rows
            self.store(p, layer, [segment for segment in segments if segment.first + segment.count > nearest])
        self.look(p, layer, segments)
        self.matmuls.linear(p.tape, attention.output, p.rows, scratch["attended"], Result(scratch["o"]))
        stream.pending = scratch["o"]

    def store(self, p: Pass, layer: Layer, segments: list[Segment]) -> None:
        """The rows' keys and values go to the cache."""
        attention, config, qkv = layer.attention, layer.config, self.scratch["qkv"]
        assert attention.k_norm is not None
        f16 = p.cache.kv == "f16"
        constants = {
            "HEAD": config.head_dim,
            "PAIRS": self.weights.pairs[config.sliding],
            "PAIR": "u32" if f16 else "vec2<f32>",
            "F16_CACHE": f16,
            "OWN_V": config.has_v,
            "THREADS": 64,
        }
        ring = p.cache.ring if config.sliding else 1 << 31
        bindings: dict[str, Binding] = {"rows": p.row_buffer, "k_raw": qkv, "v_raw": qkv, "norm": attention.k_norm}
        bindings["turns"] = self.weights.turns[config.sliding]
        for segment in segments:
            offsets = (attention.k_offset, attention.v_offset)
            params = (config.kv_heads, attention.width, *offsets, ring, segment.first, segment.count, self.config.eps)
            bound = {**bindings, "keys": segment.keys, "values": segment.values}
            p.tape.run("kv", [config.kv_heads, p.rows], bound, params, constants)

    def look(self, p: Pass, layer: Layer, segments: list[Segment]) -> None:
        """What the rows' queries find in the cache goes to `attended`."""
        config, scratch = layer.config, self.scratch
        f16 = p.cache.kv == "f16"
        constants = {
            "HEAD": config.head_dim,
            "PAIRS": self.weights.pairs[config.sliding],
            "WORD": "vec4<u32>" if f16 else "vec4<f32>",
            "PER_WORD": 8 if f16 else 4,
            "F16_CACHE": f16,
            **attention_threads(p.rows, compact=self.device.compact and f16),
        }
        splits = 1 if config.sliding or p.rows > FEW else max(1, min(SPLITS, p.depth // SPLIT))
        bindings: dict[str, Binding] = {
            "rows": p.row_buffer,
            "q_raw": scratch["qkv"],
            "norm": layer.attention.q_norm,
            "turns": self.weights.turns[config.sliding],
            "partial": scratch["partial"],
            "out": scratch["attended"],
        }
        for i, segment in enumerate(segments):
            split = p.cache.ring if config.sliding else -(-min(segment.count, p.depth - segment.first) // splits)
            params = (
                *(config.heads, config.kv_heads, layer.attention.width, config.window or 0),
                *(p.cache.ring if config.sliding else 1 << 31, segment.first, segment.count),
                *(splits, split, int(i > 0), int(i == len(segments) - 1), self.config.eps),
            )
            bound = {**bindings, "keys": segment.keys, "values": segment.values}
            p.tape.run("attention", [config.heads, p.rows, splits], bound, params, constants)
        if splits > 1:
            bound = {"partial": scratch["partial"], "out": scratch["attended"]}
            p.tape.run("attention_join", [config.heads, p.rows], bound, (splits,), {"HEAD": config.head_dim})

    # -- feed-forward

    def _feed_forward(self, p: Pass, layer: Layer, stream: Stream) -> None:
        self._geglu(p, layer.ffn.gate_up, stream.input(layer.ffn_norms), self.scratch["act"])
        stream.advance()
        self.matmuls.linear(p.tape, layer.ffn.down, p.rows, self.scratch["act"], Result(self.scratch["o"]))
        stream.pending = self.scratch["o"]

    def _geglu(self, p: Pass, gate_up: tuple[Matrix, ...], source: Input, y: Buffer) -> None:
        step, tape = self.scratch.step, p.tape
        if p.rows <= step:
            self._geglu_step(tape, p.rows, gate_up, source, y)
            return
        x = self.matmuls.settle(tape, p.rows, source) if isinstance(source, Residual) else source
        width = sum(matrix.rows for matrix in gate_up) // 2
        for first in range(0, p.rows, step):
            rows = min(step, p.rows - first)
            some = _rows_of(x, first, rows, self.config.width)
            self._geglu_step(tape, rows, gate_up, some, _rows_of(y, first, rows, width))

    def _geglu_step(self, tape: Tape, rows: int, gate_up: tuple[Matrix, ...], source: Input, y: Binding) -> None:
        if len(gate_up) == 1:
            self.matmuls.linear(tape, gate_up[0], rows, source, Result(y, then="GEGLU"))
            return
        # Two types: gate to `wide`, up behind it, then their product.
        width, wide = gate_up[0].rows, self.scratch["wide"]
        for i, matrix in enumerate(gate_up):
            self.matmuls.linear(tape, matrix, rows, source, Result(wide, 2 * width, i * width))
        tape.run("activate", [-(-width // 256), rows], {"x": wide, "y": y}, (width, 0, 0), {"APART": True})

    def _feed_experts(self, p: Pass, layer: Layer, experts: Experts, stream: Stream) -> None:
        scratch, config = self.scratch, self.config
        blocks, padded = config.width // 32, p.rows + p.rows % 2
        bindings: dict[str, Binding] = {"h": stream.h, "o": stream.pending, "norms": experts.norms}
        bindings |= {"h_out": stream.spare, "x": scratch["x"]}
        p.tape.run("experts_norm", [p.rows], bindings, (blocks, padded, config.eps), {"THREADS": THREADS})
        stream.advance()
        section = 4 * padded * config.width
        dense, inner, router = (Span(scratch["x"], i * section, section) for i in range(3))
        self._geglu(p, layer.ffn.gate_up, dense, scratch["act"])
        self.matmuls.linear(p.tape, layer.ffn.down, p.rows, scratch["act"], Result(stream.spare))
        self.matmuls.linear(p.tape, experts.router, p.rows, router, Result(scratch["scores"]))
        bindings = {"scores": scratch["scores"], "expert_scale": experts.scale}
        bindings |= {"chosen": scratch["chosen"], "weights": scratch["weights"]}
        p.tape.run("route", [p.rows], bindings, (config.expert_count, config.experts_used))
        self._ask_experts(p, experts, inner)
        bindings = {"dense": stream.spare, "routed": scratch["routed"], "norms": experts.join, "y": scratch["o"]}
        p.tape.run("experts_join", [p.rows], bindings, (blocks, config.experts_used, config.eps), {"THREADS": THREADS})
        stream.pending = scratch["o"]

    def _ask_experts(self, p: Pass, experts: Experts, source: Binding) -> None:
        """Each row's chosen experts, weighted: to `routed`."""
        scratch, config, matmuls = self.scratch, self.config, self.matmuls
        chosen, act = scratch["chosen"], scratch["expert_act"]
        width, slots = config.expert_width, config.experts_used
        grid = (p.rows, slots, config.expert_count)
        if len(experts.gate_up) == 1:
            matmuls.experts(p.tape, experts.gate_up[0], grid, source, act, chosen, geglu=True)
        else:  # two types: gate, up, then their product
            half = -(-4 * p.rows * slots * width // 256) * 256
            gate, up = (Span(scratch["expert_wide"], i * half, half) for i in (0, 1))
            for matrix, y in zip(experts.gate_up, (gate, up), strict=True):
                matmuls.experts(p.tape, matrix, grid, source, y, chosen)
            bindings: dict[str, Binding] = {"x": gate, "side": up, "y": act}
            p.tape.run("activate", [-(-width // 256), p.rows * slots], bindings, (width, width, 0), {"SIDE": True})
        matmuls.experts(p.tape, experts.down, grid, act, scratch["routed"], chosen, weights=scratch["weights"])


def _rows_of(bound: Binding, first: int, rows: int, width: int) -> Span:
    """Some rows of f32 out of many."""
    whole = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
    return Span(whole.buffer, whole.offset + 4 * first * width, 4 * rows * width)


def attention_threads(rows: int, *, compact: bool = False) -> dict[str, Any]:
    """How attention.wgsl shares out its work: many rows keep the GPU busy by themselves, few want many threads each."""
    if compact:
        return {"THREADS": 64, "SHARE": 1}
    return {"THREADS": 256, "SHARE": 4, "SHARED": True} if rows <= FEW else {"THREADS": 128, "SHARE": 1}
