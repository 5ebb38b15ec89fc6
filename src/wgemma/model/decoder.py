"""Records the forward pass, layer by layer; the same code for one row and for hundreds."""

from dataclasses import replace

from wgemma.gpu.device import Binding, Buffer, Device, Span
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model import experts
from wgemma.model.adapters import Low, Lows, Table
from wgemma.model.attention import look, put_together, store
from wgemma.model.cache import CacheSegment
from wgemma.model.direct import DirectMatmuls
from wgemma.model.matmul import Input, Joined, Matmuls, Precision, Result, Rounded
from wgemma.model.passes import Activations, Pass, Stream
from wgemma.model.planes import PLANES
from wgemma.model.text import Experts, TextLayer, TextWeights
from wgemma.model.weights import Matrix, MatrixPart, RowOrder, repack


def matmuls_for(device: Device, eps: float, precision: Precision, *, middle: bool = True) -> Matmuls:
    """The fastest products for this device, with middle.wgsl or without."""
    matmuls = (DirectMatmuls if device.compact else Matmuls)(device, eps, precision)
    if not middle:
        matmuls.avoid_middle()
    return matmuls


class Decoder:
    """Records the text model's forward pass onto tapes, with its activations in `scratch`."""

    keeps = False  # keep the inputs of the experts' activations, which training needs

    def __init__(self, ledger: Ledger, weights: TextWeights, matmuls: Matmuls, scratch: Activations) -> None:
        self.ledger = ledger
        self.device = ledger.device
        self.weights = weights
        self.config = weights.config
        self.matmuls = matmuls
        self.scratch = scratch
        self.raw_table: MatrixPart | None = None  # planes of rows fetched by the host, if it holds the table
        self.raw_rows: Buffer | None = None
        if weights.inputs is not None and weights.inputs.table is None:
            self._make_room_for_fetched_rows(ledger, scratch.rows)

    def _make_room_for_fetched_rows(self, ledger: Ledger, rows: int) -> None:
        inputs = self.weights.inputs
        assert inputs is not None
        planes, columns = PLANES[inputs.tensor.type], inputs.tensor.shape[0]
        edge = -(-planes.code_bytes(rows, columns) // 256) * 256
        scale_bytes = planes.scale_bytes(rows, columns)
        buffer = ledger.buffer(edge + scale_bytes, "fetched per-layer rows")
        scales = Span(buffer, edge, scale_bytes) if scale_bytes else None
        self.raw_table = MatrixPart(0, rows, buffer, Span(buffer, 0, planes.code_bytes(rows, columns)), scales)
        self.raw_rows = ledger.buffer(rows * inputs.tensor.format.row_nbytes(columns), "per-layer rows, raw")

    def put_soft(self, rows: Buffer, first: int, at: int, count: int) -> None:
        """Copies `count` encoded rows of an image or clip, from `first` on, to row `at` of the next pass's input."""
        size = 4 * self.config.width
        tape = Tape(self.device, "soft rows")
        tape.copy(rows, first * size, self.scratch["h"], at * size, count * size)
        tape.program().replay()

    # -- the whole pass

    def record(self, p: Pass, layers: int | None = None) -> Stream:
        """From the rows' tokens to the residual stream after the last layer, or after fewer layers."""
        stream = Stream(self.scratch["h"], self.scratch["h2"], self.scratch["zeros"])
        assert not p.lows or p.rows <= (p.lows.rows or p.rows)  # every row has scales
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

    def fill(self, p: Pass) -> None:
        """Only what the rows leave in the cache. Nothing after the last keys and values counts for that: layers that
        share an earlier one's are left out, more than half of E2B's."""
        last = max(layer.config.index for layer in self.weights.layers if layer.config.donor is None)
        self._keys_and_values(p, self.weights.layers[last], self.record(p, last))

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
                bytes=self.scratch.rounded,
                parts=self.scratch.parts,
            )
            source = stream.input(layer.per_layer.norms, self.scratch["x"], norm=False)
            self._linear(p, layer, "ple_gate", layer.per_layer.gate, source, gated)
            stream.advance()
            output = self.scratch["per-layer o"]
            projection = layer.per_layer.projection
            result = Result(output, bytes=self.scratch.rounded)
            self._linear(p, layer, "ple_projection", projection, self.scratch["gated"], result)
            stream.add(output)
        stream.scale = layer.scale

    def _linear(self, p: Pass, layer: TextLayer, group: str, matrix: Matrix, source: Input, result: Result) -> int:
        """The product with a matrix that forms its own group, plus its adapters. Returns the partial sums it leaves."""
        result = self._adapted(p, layer, group, result)
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(p.tape, result.low, p.rows, source, result.z)
        return self.matmuls.linear(p.tape, matrix, p.rows, source, result)

    def _adapted(self, p: Pass, layer: TextLayer, group: str, result: Result) -> Result:
        """The result with this group's adapters attached, if any."""
        low = p.low(layer, group)
        return result if low is None else replace(result, low=low, z=self._z(p, low, group))

    def _meets(self, p: Pass) -> bool:
        """Whether this pass clears its adapters' meetings first, and so can use them."""
        return p.rows <= self.matmuls.few

    def _z(self, p: Pass, low: Low, group: str) -> Binding:
        """The buffer for z."""
        return low.meeting if low.meeting and self._meets(p) else self.scratch[f"z {group}"]

    def head(self, p: Pass, stream: Stream, logits: Buffer, stride: int = 0) -> None:
        """Soft-capped logits [rows, vocab] of every row, `stride` apart if that is more."""
        source = stream.input(self.weights.output_norms, self.scratch["head x"])
        self._head(p.tape, p.rows, source, replace(self._logits(logits, p.lows), stride=stride))

    def settle(self, p: Pass, stream: Stream) -> None:
        """Ends a pass before the logits, with its rows in `settled`; `head_of_some` continues, some rows at a time."""
        self.matmuls.settle(p.tape, p.rows, stream.input(self.weights.output_norms, self.settled))

    @property
    def settled(self) -> Buffer:
        """f32 [rows, width]: the hidden state after the final norm, if the last pass was settled."""
        return self.scratch["head x"]

    def head_of_some(self, tape: Tape, first: int, rows: int, logits: Buffer, lows: Lows | None = None) -> None:
        """Logits [rows, vocab] of a settled pass, from row `first` on."""
        source = _rows_of(self.settled, first, rows, self.config.width)
        self._head(tape, rows, source, self._logits(logits, lows, first))

    def _head(self, tape: Tape, rows: int, source: Input, result: Result) -> None:
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(tape, result.low, rows, source, result.z)
        self.matmuls.linear(tape, self.weights.head, rows, source, result)

    def _logits(self, logits: Buffer, lows: Lows | None, first: int = 0) -> Result:
        low = lows.head.from_row(first) if lows and lows.head else None
        z = self.scratch["z head"] if low else None
        cap, room = self.config.softcap or 0.0, self.scratch.rounded
        return Result(logits, then="SOFTCAP", cap=cap, low=low, z=z, bytes=room)

    # -- inputs

    def embed(
        self, tape: Tape, rows: int, row_buffer: Buffer, matrix: Matrix, y: Buffer, scale: float, *, pads: bool = False
    ) -> None:
        """y = scale · the tokens' rows of the matrix. Soft rows get PAD's row with `pads`, otherwise y is unchanged."""
        for part in matrix.parts:
            bindings = {**part.bindings(), "rows": row_buffer, "y": y}
            params = {"blocks": matrix.blocks, "first": part.first, "count": part.rows, "scale": scale}
            params |= {"by_index": False, "pads": pads}
            tape.run("embed", [-(-matrix.blocks // 64), rows], bindings, params, {"TYPE": matrix.planes.reader})

    def _embed_low(self, p: Pass, table: Table, y: Buffer) -> None:
        """Adds the adapters' part of the embedding."""
        width = self.config.width
        bindings: dict[str, Binding] = {"rows": p.row_buffer, "table": table.rows, "b": table.b, "scales": table.scales}
        params = {"columns": width, "rank": table.rank, "scale": width**0.5, "scale_step": table.scale_step}
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
        result = Result(scratch["projected"], bytes=scratch.rounded)
        self.matmuls.linear(p.tape, inputs.projection, p.rows, stream.h, result)
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

    def _attend(self, p: Pass, layer: TextLayer, stream: Stream) -> None:
        segments = self._keys_and_values(p, layer, stream)
        pieces = look(p, self.weights, self.scratch, layer, segments, join=False)
        stream.add(self.scratch["attention o"], self.scratch.parts, self._put_out(p, layer, pieces))

    def _keys_and_values(self, p: Pass, layer: TextLayer, stream: Stream) -> list[CacheSegment]:
        """Queries, and unless the layer shares an earlier one's, keys and values, which go to the cache; returns the
        part of the cache to attend to."""
        attention, config, scratch = layer.attention, layer.config, self.scratch
        source: Input = stream.input(layer.attention_norms, scratch["attention x"])
        result = Result(scratch["qkv"], attention.width, fine=True, bytes=scratch.rounded, parts=scratch.parts)
        result = self._adapted(p, layer, "qkv", result)
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(p.tape, result.low, p.rows, source, result.z)
        self.matmuls.side_by_side(p.tape, attention.qkv, p.rows, source, result)
        stream.advance()
        owner = config.index if config.donor is None else config.donor
        segments = p.cache.segments[owner]
        if config.donor is None:
            store(p, self.weights, scratch, layer, segments)
        return segments

    def _put_out(self, p: Pass, layer: TextLayer, pieces: int) -> int:
        """The output projection of the attention result, which may still be in several pieces. Returns the number of
        partial sums left, if what follows reads them before it writes there."""
        config, matrix = layer.config, layer.attention.output
        scratch = self.scratch
        leaves = layer.experts is not None or len(layer.ffn.gate_up) == 1
        result = Result(scratch["attention o"], fine=True, bytes=scratch.rounded, parts=scratch.parts, leaves=leaves)
        adapted = self._adapted(p, layer, "o", result)
        if pieces and config.sliding and self.matmuls.joins(matrix, p.rows, config.heads, pieces, adapted):
            joined = Joined(scratch["partial"], scratch["attended"], config.heads, config.head_dim, pieces)
            self.matmuls.joined(p.tape, matrix, p.rows, joined, adapted)
            return 0
        room = scratch.rounded if self.matmuls.reads_bytes(matrix, p.rows, adapted) else None
        if pieces and room is not None:
            put_together(p, scratch, config, pieces, room)
            return self.matmuls.linear(p.tape, matrix, p.rows, Rounded(None, room, fine=True), result)
        if pieces:
            put_together(p, scratch, config, pieces)
        return self._linear(p, layer, "o", matrix, scratch["attended"], result)

    # -- feed-forward

    def _feed_forward(self, p: Pass, layer: TextLayer, stream: Stream) -> None:
        scratch, room = self.scratch, self.scratch.rounded
        result = Result(scratch["ffn o"], bytes=room, rounded=room, parts=scratch.parts, leaves=True)
        left = self._dense(p, layer, stream.input(layer.ffn_norms, scratch["ffn x"]), result)
        stream.advance()
        stream.add(scratch["ffn o"], scratch.parts, left)

    def _dense(self, p: Pass, layer: TextLayer, source: Input, result: Result) -> int:
        """Gate and up, then down; returns the partial sums it leaves."""
        act, down = self.scratch["act"], layer.ffn.down
        if p.rows <= self.scratch.step and len(layer.ffn.gate_up) == 1 and result.bytes:
            gate_up = self._gated(p, layer, act)
            last = self._adapted(p, layer, "down", result)
            if self.matmuls.hands_on(layer.ffn.gate_up[0], down, p.rows, source, gate_up, last):
                self.matmuls.linear(p.tape, layer.ffn.gate_up[0], p.rows, source, replace(gate_up, rounds=True))
                return self.matmuls.linear(p.tape, down, p.rows, Rounded(None, act, fine=False), result)
        self._geglu(p, layer, source, act)
        return self._linear(p, layer, "down", down, act, result)

    def _gated(self, p: Pass, layer: TextLayer, y: Binding, first: int = 0) -> Result:
        """The result of gate and up of one type, for the rows from `first` on."""
        low, room = p.low(layer, "gate_up", first), self.scratch.rounded
        z = self._z(p, low, "gate_up") if low is not None else None
        return Result(y, then="GEGLU", bare=self.scratch["wide"], low=low, z=z, bytes=room, rounded=room)

    def _geglu(self, p: Pass, layer: TextLayer, source: Input, y: Buffer) -> None:
        step, tape = self.scratch.step, p.tape
        if p.rows <= step:
            self._geglu_step(p, layer, p.rows, source, y)
            return
        x = self.matmuls.settled(tape, p.rows, source)
        for first in range(0, p.rows, step):
            rows = min(step, p.rows - first)
            some = _rows_of(x, first, rows, self.config.width)
            self._geglu_step(p, layer, rows, some, _rows_of(y, first, rows, layer.config.ffn_width), first)

    def _geglu_step(self, p: Pass, layer: TextLayer, rows: int, source: Input, y: Binding, first: int = 0) -> None:
        """The rows from `first` on."""
        tape, gate_up, wide = p.tape, layer.ffn.gate_up, self.scratch["wide"]
        result = self._gated(p, layer, y, first)
        if result.low is not None and result.z is not None:
            source = self.matmuls.project(tape, result.low, rows, source, result.z)
        if len(gate_up) == 1:
            self.matmuls.linear(tape, gate_up[0], rows, source, result)
            return
        # Two types: gate and up side by side in `wide`, then their product.
        width = gate_up[0].rows
        apart = replace(result, y=wide, stride=2 * width, then="", bare=None)
        self.matmuls.side_by_side(tape, gate_up, rows, source, apart)
        tape.run("activate", [-(-width // 256), rows], {"x": wide, "y": y}, {"n": width}, {"APART": True})

    def _feed_experts(self, p: Pass, layer: TextLayer, asked: Experts, stream: Stream) -> None:
        scratch, config = self.scratch, self.config
        dense, inner, router = experts.inputs(p, config, scratch, asked, stream)
        result = Result(scratch["dense"], bytes=scratch.rounded, rounded=scratch.rounded, parts=scratch.parts)
        self._dense(p, layer, dense, result)
        experts.route(p, self.matmuls, config, scratch, asked, router)
        experts.ask(p, self.matmuls, config, scratch, layer, asked, inner, keeps=self.keeps)
        experts.join(p, config, scratch, asked)
        stream.add(scratch["ffn o"])


def _rows_of(bound: Binding, first: int, rows: int, width: int) -> Span:
    """A span of some f32 rows."""
    whole = bound if isinstance(bound, Span) else Span(bound, 0, bound.size)
    return Span(whole.buffer, whole.offset + 4 * first * width, 4 * rows * width)
