"""The forward pass, recorded: one function per layer, the same for one row and for hundreds.

A few rows go through matvec.wgsl, which makes its own input from the residual stream; many go through tile.wgsl, with
the same steps as kernels of their own between. `Stream` is the residual stream while it is being recorded: the last
block's output is not added yet, because the next kernel does that on its way in.
"""

from dataclasses import dataclass
from typing import Any

from wgemma.gpu.device import Binding, Buffer, Device, Span
from wgemma.gpu.tape import Tape
from wgemma.model.cache import Cache, Segment
from wgemma.model.text import Experts, Layer, TextWeights
from wgemma.model.weights import Matrix, Part, RowOrder, repack

FEW = 8  # up to so many rows take the mat-vec path
SPLITS = 32  # a row's history is cut into at most so many pieces
THREADS = 256


@dataclass(slots=True)
class Stream:
    """h is the residual stream without `pending`, the output of the last block; `scale` multiplies their sum."""

    h: Buffer
    spare: Buffer
    pending: Buffer
    scale: float = 1.0

    def advance(self) -> None:
        """The sum now lies in what was the spare buffer."""
        self.h, self.spare, self.scale = self.spare, self.h, 1.0


class Scratch:
    """The activations of up to `rows` rows."""

    def __init__(self, device: Device, weights: TextWeights, rows: int) -> None:
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
            "wide": rows * wide,
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
        self.buffers = {name: device.buffer(4 * size, name) for name, size in sizes.items()}
        self.nbytes = 4 * sum(sizes.values())

    def __getitem__(self, name: str) -> Buffer:
        return self.buffers[name]


class Decoder:
    """Records the text model's forward pass onto tapes."""

    def __init__(self, device: Device, weights: TextWeights, rows: int) -> None:
        self.device = device
        self.weights = weights
        self.config = weights.config
        self.scratch = Scratch(device, weights, rows)
        self.raw_table: Part | None = None  # planes of the rows the host fetched, where the table is not on the GPU
        self.raw_rows: Buffer | None = None
        inputs = weights.inputs
        if inputs is not None and inputs.table is None:
            self._make_room_for_fetched_rows(rows)

    def _make_room_for_fetched_rows(self, rows: int) -> None:
        from wgemma.model.planes import PLANES

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

    def record(
        self, tape: Tape, rows: int, row_buffer: Buffer, cache: Cache, depth: int, layers: int | None = None
    ) -> Stream:
        """From the tokens of `rows` rows to the residual stream after the last layer, or after fewer layers."""
        stream = Stream(self.scratch["h"], self.scratch["h2"], self.scratch["zeros"])
        self._embed(tape, rows, row_buffer, self.weights.embedding, stream.h, self.config.width**0.5)
        if self.config.ple_dim:
            self._per_layer_inputs(tape, rows, row_buffer, stream)
        for index in range(len(self.weights.layers) if layers is None else layers):
            self.layer(tape, index, stream, rows, row_buffer, cache, depth)
        return stream

    def layer(
        self, tape: Tape, index: int, stream: Stream, rows: int, row_buffer: Buffer, cache: Cache, depth: int
    ) -> None:
        layer = self.weights.layers[index]
        self._attend(tape, layer, stream, rows, row_buffer, cache, depth)
        if layer.experts:
            self._feed_experts(tape, layer, layer.experts, stream, rows)
        else:
            self._feed_forward(tape, layer, stream, rows)
        if layer.per_layer:
            source = self._source(stream, layer.per_layer.norms, norm=False)
            side = {"side": self.scratch["ple"]}
            place = (self.config.ple_dim * len(self.weights.layers), self.config.ple_dim * index)
            self.linear(tape, layer.per_layer.gate, rows, source, self.scratch["gated"], "PLE", side, place)
            stream.advance()
            self.linear(tape, layer.per_layer.projection, rows, self.scratch["gated"], self.scratch["o"])
        stream.scale = layer.scale

    def head(self, tape: Tape, stream: Stream, picked: Buffer, count: int, logits: Buffer) -> None:
        """Logits [count, vocab] of the picked rows, soft-capped."""
        source = self._source(stream, self.weights.output_norms, norm=True)
        matrix, vocab = self.weights.head, self.config.vocab_size
        cap = self.config.softcap or 0.0
        for part in matrix.parts:
            self._matvec(tape, matrix, part, count, source, logits, (vocab, part.first), cap=cap, select=picked)

    def head_of_all(self, tape: Tape, stream: Stream, rows: int, logits: Buffer) -> None:
        """Logits [rows, vocab] of every row, soft-capped."""
        source = self._source(stream, self.weights.output_norms, norm=True)
        self.linear(tape, self.weights.head, rows, source, logits, "SOFTCAP", cap=self.config.softcap or 0.0)

    # -- parts of the pass

    def _embed(self, tape: Tape, rows: int, row_buffer: Buffer, matrix: Matrix, y: Buffer, scale: float) -> None:
        for part in matrix.parts:
            bindings = {**part.bindings(), "rows": row_buffer, "y": y}
            params = (matrix.blocks, part.first, part.rows, 0, scale)
            tape.run("embed", [-(-matrix.blocks // 64), rows], bindings, params, {"TYPE": matrix.planes.reader})

    def _per_layer_inputs(self, tape: Tape, rows: int, row_buffer: Buffer, stream: Stream) -> None:
        inputs = self.weights.inputs
        assert inputs is not None
        scratch, p = self.scratch, self.config.ple_dim
        root = p**0.5
        if inputs.table is not None:
            self._embed(tape, rows, row_buffer, inputs.table, scratch["table"], root)
        else:
            self._embed_fetched(tape, rows, row_buffer, root)
        self.linear(tape, inputs.projection, rows, stream.h, scratch["projected"])
        bindings = {"c": scratch["projected"], "table": scratch["table"], "norm": inputs.norm, "ple": scratch["ple"]}
        params = (p, self.config.eps, self.config.width**-0.5)
        tape.run("ple", [len(self.weights.layers), rows], bindings, params, {"THREADS": 64})

    def _embed_fetched(self, tape: Tape, rows: int, row_buffer: Buffer, scale: float) -> None:
        from wgemma.model.planes import PLANES

        inputs = self.weights.inputs
        assert inputs is not None and self.raw_table is not None and self.raw_rows is not None
        blocks = inputs.tensor.shape[0] // 32
        planes = PLANES[inputs.tensor.type]
        if planes.halves and self.raw_table.scales is not None:
            tape.run("clear", [1], {"words": self.raw_table.scales}, (self.raw_table.scales.size // 4,))
        repack(tape, inputs.tensor, RowOrder(), self.raw_table, self.raw_rows, 0, rows)
        bindings = {**self.raw_table.bindings(), "rows": row_buffer, "y": self.scratch["table"]}
        constants = {"TYPE": planes.reader}
        tape.run("embed", [-(-blocks // 64), rows], bindings, (blocks, 0, rows, 1, scale), constants)

    def _attend(
        self, tape: Tape, layer: Layer, stream: Stream, rows: int, row_buffer: Buffer, cache: Cache, depth: int
    ) -> None:
        attention, config, scratch = layer.attention, layer.config, self.scratch
        source = self._source(stream, layer.attention_norms, norm=True)
        self._side_by_side(tape, attention.qkv, rows, source, scratch["qkv"], attention.width)
        stream.advance()
        owner = config.index if config.donor is None else config.donor
        segments = [segment for segment in cache.segments[owner] if segment.first < depth or config.sliding]
        if config.donor is None:
            self._store(tape, layer, rows, row_buffer, cache, segments)
        self._look(tape, layer, rows, row_buffer, cache, segments, depth)
        self.linear(tape, attention.output, rows, scratch["attended"], scratch["o"])
        stream.pending = scratch["o"]

    def _store(
        self, tape: Tape, layer: Layer, rows: int, row_buffer: Buffer, cache: Cache, segments: list[Segment]
    ) -> None:
        attention, config, qkv = layer.attention, layer.config, self.scratch["qkv"]
        assert attention.k_norm is not None
        f16 = cache.kv == "f16"
        constants = {
            "HEAD": config.head_dim,
            "PAIRS": self.weights.pairs[config.sliding],
            "PAIR": "u32" if f16 else "vec2<f32>",
            "F16_CACHE": f16,
            "OWN_V": config.has_v,
            "THREADS": 64,
        }
        ring = cache.ring if config.sliding else 1 << 31
        for segment in segments:
            bindings: dict[str, Binding] = {"rows": row_buffer, "k_raw": qkv, "v_raw": qkv, "norm": attention.k_norm}
            bindings |= {
                "turns": self.weights.turns[config.sliding],
                "keys": segment.keys,
                "values": segment.values,
            }
            offsets = (attention.k_offset, attention.v_offset)
            params = (config.kv_heads, attention.width, *offsets, ring, segment.first, segment.count, self.config.eps)
            tape.run("kv", [config.kv_heads, rows], bindings, params, constants)

    def _look(
        self,
        tape: Tape,
        layer: Layer,
        rows: int,
        row_buffer: Buffer,
        cache: Cache,
        segments: list[Segment],
        depth: int,
    ) -> None:
        config, scratch = layer.config, self.scratch
        f16 = cache.kv == "f16"
        constants = {
            "HEAD": config.head_dim,
            "PAIRS": self.weights.pairs[config.sliding],
            "WORD": "vec4<u32>" if f16 else "vec4<f32>",
            "PER_WORD": 8 if f16 else 4,
            "F16_CACHE": f16,
            "THREADS": 128,
        }
        splits = 1 if config.sliding or rows > FEW else max(1, min(SPLITS, depth // 128))
        bindings: dict[str, Binding] = {
            "rows": row_buffer,
            "q_raw": scratch["qkv"],
            "norm": layer.attention.q_norm,
            "turns": self.weights.turns[config.sliding],
            "partial": scratch["partial"],
            "out": scratch["attended"],
        }
        for i, segment in enumerate(segments):
            reach = cache.ring if config.sliding else -(-min(segment.count, depth - segment.first) // splits)
            params = (
                *(config.heads, config.kv_heads, layer.attention.width, config.window or 0),
                *(cache.ring if config.sliding else 1 << 31, segment.first, segment.count),
                *(splits, reach, int(i > 0), int(i == len(segments) - 1), self.config.eps),
            )
            bound = {**bindings, "keys": segment.keys, "values": segment.values}
            tape.run("attention", [config.heads, rows, splits], bound, params, constants)
        if splits > 1:
            bound = {"partial": scratch["partial"], "out": scratch["attended"]}
            tape.run("attention_join", [config.heads, rows], bound, (splits,), {"HEAD": config.head_dim})

    def _feed_forward(self, tape: Tape, layer: Layer, stream: Stream, rows: int) -> None:
        source = self._source(stream, layer.ffn_norms, norm=True)
        self._geglu(tape, layer.ffn.gate_up, rows, source, self.scratch["act"])
        stream.advance()
        self.linear(tape, layer.ffn.down, rows, self.scratch["act"], self.scratch["o"])
        stream.pending = self.scratch["o"]

    def _geglu(self, tape: Tape, gate_up: tuple[Matrix, ...], rows: int, source: Any, y: Buffer) -> None:
        if len(gate_up) == 1:
            self.linear(tape, gate_up[0], rows, source, y, "GEGLU")
            return
        # Two types: gate to `wide`, up behind it, then their product.
        gate, up = gate_up
        wide = self.scratch["wide"]
        self.linear(tape, gate, rows, source, wide, place=(2 * gate.rows, 0))
        self.linear(tape, up, rows, source, wide, place=(2 * gate.rows, gate.rows))
        bindings = {"x": wide, "y": y}
        tape.run("activate", [-(-gate.rows // 256), rows], bindings, (gate.rows, 0, 0), {"APART": True})

    def _feed_experts(self, tape: Tape, layer: Layer, experts: Experts, stream: Stream, rows: int) -> None:
        scratch, config = self.scratch, self.config
        blocks, padded = config.width // 32, rows + rows % 2
        bindings: dict[str, Binding] = {"h": stream.h, "o": stream.pending, "norms": experts.norms}
        bindings |= {"h_out": stream.spare, "x": scratch["x"]}
        tape.run("experts_norm", [rows], bindings, (blocks, padded, config.eps), {"THREADS": THREADS})
        stream.advance()
        section = 4 * padded * config.width
        dense, inner, router = (Span(scratch["x"], i * section, section) for i in range(3))
        self._geglu(tape, layer.ffn.gate_up, rows, dense, scratch["act"])
        self.linear(tape, layer.ffn.down, rows, scratch["act"], stream.spare)
        self.linear(tape, experts.router, rows, router, scratch["scores"])
        chosen, weights = scratch["chosen"], scratch["weights"]
        bound: dict[str, Binding] = {"scores": scratch["scores"], "expert_scale": experts.scale}
        bound |= {"chosen": chosen, "weights": weights}
        tape.run("route", [rows], bound, (config.expert_count, config.experts_used))
        self._expert_geglu(tape, experts, rows, inner, chosen)
        self._experts(tape, experts.down, rows, scratch["expert_act"], scratch["routed"], chosen, weights=weights)
        joined: dict[str, Binding] = {"dense": stream.spare, "routed": scratch["routed"], "norms": experts.join}
        joined |= {"y": scratch["o"]}
        tape.run("experts_join", [rows], joined, (blocks, config.experts_used, config.eps), {"THREADS": THREADS})
        stream.pending = scratch["o"]

    def _expert_geglu(self, tape: Tape, experts: Experts, rows: int, source: Binding, chosen: Buffer) -> None:
        act, wide = self.scratch["expert_act"], self.scratch["expert_wide"]
        if len(experts.gate_up) == 1:
            self._experts(tape, experts.gate_up[0], rows, source, act, chosen, geglu=True)
            return
        width, slots = self.config.expert_width, self.config.experts_used
        half = 4 * rows * slots * width
        half = -(-half // 256) * 256
        for i, matrix in enumerate(experts.gate_up):
            self._experts(tape, matrix, rows, source, Span(wide, i * half, half), chosen)
        bindings: dict[str, Binding] = {"x": Span(wide, 0, half), "side": Span(wide, half, half), "y": act}
        tape.run("activate", [-(-width // 256), rows * slots], bindings, (width, width, 0), {"SIDE": True})

    def _experts(
        self,
        tape: Tape,
        matrix: Matrix,
        rows: int,
        source: Binding,
        y: Binding,
        chosen: Buffer,
        *,
        geglu: bool = False,
        weights: Buffer | None = None,
    ) -> None:
        slots, per_expert = self.config.experts_used, matrix.rows // self.config.expert_count
        lanes = _lanes(matrix)
        constants = {"TYPE": matrix.planes.reader, "LANES": lanes, "THREADS": THREADS, "EXPERTS": True}
        constants |= {"GEGLU": geglu, "WEIGHTED": weights is not None}
        for part in matrix.parts:
            bindings: dict[str, Binding] = {**part.bindings(), "x": source, "y": y, "chosen": chosen}
            if weights is not None:
                bindings["weights"] = weights
            first, count = part.first // per_expert, part.rows // per_expert
            params = (matrix.blocks, per_expert, 0, 0, 1.0, self.config.eps, 0.0, 0, 0, slots, first, count)
            grid = [-(-per_expert * lanes // THREADS), rows, slots]
            tape.run("matvec", grid, bindings, params, constants)

    # -- matmuls

    def _source(self, stream: Stream, norms: Buffer, *, norm: bool) -> "Residual":
        return Residual(stream.h, stream.pending, norms, stream.spare, stream.scale, norm)

    def _side_by_side(
        self, tape: Tape, matrices: tuple[Matrix, ...], rows: int, source: "Residual", y: Buffer, width: int
    ) -> None:
        """Several matrices on one input, their results next to each other."""
        settled: Residual | Buffer = source if rows <= FEW else self._settle(tape, rows, source)
        offset = 0
        for matrix in matrices:
            self.linear(tape, matrix, rows, settled, y, place=(width, offset))
            offset += matrix.rows

    def linear(
        self,
        tape: Tape,
        matrix: Matrix,
        rows: int,
        source: "Residual | Binding",
        y: Buffer,
        then: str = "",
        side: dict[str, Binding] | None = None,
        place: tuple[int, int] | None = None,
        cap: float = 0.0,
    ) -> None:
        """y = W x, and `then` GEGLU, PLE (times `side`, whose stride and offset are `place`) or SOFTCAP."""
        stride, offset = place if place and then != "PLE" else (matrix.rows, 0)
        if rows <= FEW:
            for part in matrix.parts:
                first = part.first // 2 if then == "GEGLU" else part.first
                out = (stride // 2 if then == "GEGLU" else stride, offset + first)
                self._matvec(tape, matrix, part, rows, source, y, out, then, side, place, cap=cap)
            return
        x = self._settle(tape, rows, source) if isinstance(source, Residual) else source
        raw = self.scratch["wide"] if then in ("GEGLU", "PLE") else y
        constants = {"TYPE": matrix.planes.reader, "SOFTCAP": then == "SOFTCAP"}
        for part in matrix.parts:
            params = (matrix.blocks, part.rows, rows, stride, offset + part.first, cap)
            bindings = {**part.bindings(), "x": x, "y": raw}
            tape.run("tile", [-(-part.rows // 64), -(-rows // 32)], bindings, params, constants)
        if then == "GEGLU":
            count = matrix.rows // 2
            tape.run("activate", [-(-count // 256), rows], {"x": raw, "y": y}, (count, 0, 0), {"GEGLU": True})
        elif then == "PLE":
            assert side is not None and place is not None
            bindings = {"x": raw, "y": y, **side}
            tape.run("activate", [-(-matrix.rows // 256), rows], bindings, (matrix.rows, *place), {"SIDE": True})

    def _settle(self, tape: Tape, rows: int, source: "Residual") -> Buffer:
        """The input as a buffer of its own, for many rows."""
        x = self.scratch["x"]
        params = (self.config.width // 32, source.scale, self.config.eps)
        constants = {"THREADS": THREADS, "NORM": source.norm}
        tape.run("norm", [rows], {**source.bindings(), "x": x}, params, constants)
        return x

    def _matvec(
        self,
        tape: Tape,
        matrix: Matrix,
        part: Part,
        rows: int,
        source: "Residual | Binding",
        y: Buffer,
        out: tuple[int, int],
        then: str = "",
        side: dict[str, Binding] | None = None,
        place: tuple[int, int] | None = None,
        *,
        cap: float = 0.0,
        select: Buffer | None = None,
    ) -> None:
        lanes = _lanes(matrix)
        residual = source if isinstance(source, Residual) else None
        constants: dict[str, Any] = {"TYPE": matrix.planes.reader, "LANES": lanes, "THREADS": THREADS}
        constants |= {"RESIDUAL": residual is not None, "NORM": residual is not None and residual.norm}
        constants |= {"SELECT": select is not None}
        constants |= {"SOFTCAP": select is not None or then == "SOFTCAP"}
        if then in ("GEGLU", "PLE"):
            constants[then] = True
        bindings: dict[str, Binding] = {**part.bindings(), "y": y, **(side or {})}
        bindings |= source.bindings() if isinstance(source, Residual) else {"x": source}
        if select is not None:
            bindings["picked"] = select
        scale = residual.scale if residual else 1.0
        side_place = place if then == "PLE" and place else (0, 0)
        params = (matrix.blocks, part.rows, *out, scale, self.config.eps, cap, *side_place, 1, 0, 0)
        tape.run("matvec", [-(-part.rows * lanes // THREADS), rows], bindings, params, constants)


@dataclass(frozen=True, slots=True)
class Residual:
    """An input that is made from the residual stream on the way in (kernels/residual.wgsl)."""

    h: Buffer
    pending: Buffer
    norms: Buffer
    h_out: Buffer
    scale: float
    norm: bool

    def bindings(self) -> dict[str, Binding]:
        return {"h": self.h, "o": self.pending, "norms": self.norms, "h_out": self.h_out}


def _lanes(matrix: Matrix) -> int:
    """Threads that share a row: few blocks want few."""
    return 32 if matrix.blocks >= 32 else 8
