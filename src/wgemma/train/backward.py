"""Records the backward pass: from the gradient of a layer's output to that of its input, collecting the gradients of
the adapter.

A layer is blocks  v ← scale · (v + post ⊙ rms(o)),  o = block(norm ⊙ rms(v)).  `dv` is the gradient of the residual
stream throughout; `do` is that of a block's output, `dx` that of its input. If layers share the keys and values of an
earlier one, their gradients are summed until the backward pass reaches it.
"""

from collections.abc import Sequence
from typing import Any

from wgemma.gpu.device import Binding, Buffer, Span
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.adapters import NEVER, Low, Lows
from wgemma.model.cache import PackedCache
from wgemma.model.forms import THREADS, tile_back_form
from wgemma.model.passes import Pass
from wgemma.model.text import Experts, TextLayer
from wgemma.model.weights import Matrix
from wgemma.train.activations import gradient_sizes
from wgemma.train.flat import Flat
from wgemma.train.forward import TrainingDecoder


class Backward:
    """Records the backward pass of one decoder."""

    def __init__(self, ledger: Ledger, decoder: TrainingDecoder, cache: PackedCache, flat: Flat, lows: Lows) -> None:
        self.decoder = decoder
        self.weights = decoder.weights
        self.config = decoder.config
        self.cache = cache
        self.flat = flat
        rows = decoder.kept.rows
        sizes = gradient_sizes(self.weights, lows, rows)
        self.gradients = {name: ledger.buffer(4 * size, name) for name, size in sizes.items()}
        keys = {c.index: 4 * rows * c.kv_heads * c.head_dim for c in self.config.layers if c.donor is None}
        # The gradients of keys and values: those several layers share, and those only one uses.
        self._owed = {index: _pair(ledger, keys[index]) for index in cache.shared}
        self._own = _pair(ledger, max(keys.values()))

    def head(self, p: Pass, d_head: Buffer) -> None:
        """From the gradient of the head's input to that of the residual stream after the last layer."""
        dv, kept = self.gradients["dv"], self.decoder.kept
        p.tape.copy(kept["zeros"], 0, dv, 0, 4 * p.rows * self.config.width)
        self._begin_block(p, kept["final h"], self.weights.output_norms, d_head)

    def layer(self, p: Pass, index: int) -> None:
        """One layer, whose forward pass has just filled the activations."""
        layer, kept, grads = self.weights.layers[index], self.decoder.kept, self.gradients
        kept.layer = index
        last = index + 1 == len(self.weights.layers)
        after = self.weights.output_norms if last else self.weights.layers[index + 1].attention_norms
        self._end_block(p, kept["per-layer o" if layer.per_layer else "ffn o"], after, layer.scale)
        if layer.per_layer:
            matrices = (layer.per_layer.projection,)
            self._linear(p, layer, "ple_projection", matrices, kept["gated"], grads["do"], grads["d gated"])
            self._through_gate(p, index)
            gate = (layer.per_layer.gate,)
            self._linear(p, layer, "ple_gate", gate, kept["h2"], grads["d gate"], grads["dv"], add=True)
            self._end_block(p, kept["ffn o"], layer.per_layer.norms, 1.0)
        if layer.experts:
            self._experts(p, layer, layer.experts)
        else:
            self._feed_forward(p, layer, kept["ffn x"], grads["do"], grads["dx"])
            self._begin_block(p, kept["h1"], layer.ffn_norms, grads["dx"])
        self._end_block(p, kept["attention o"], layer.experts.norms if layer.experts else layer.ffn_norms, 1.0)
        output = (layer.attention.output,)
        self._linear(p, layer, "o", output, kept["attended"], grads["do"], grads["d attended"])
        self._attention(p, layer)
        self._linear(p, layer, "qkv", layer.attention.qkv, kept["attention x"], grads["d qkv"], grads["dx"])
        self._begin_block(p, self.decoder.inputs[index], layer.attention_norms, grads["dx"])

    # -- the residual stream

    def _end_block(self, p: Pass, o: Buffer, norms: Buffer, scale: float) -> None:
        """v ← scale · (v + post ⊙ rms(o)): turns dv into the gradient of the old v, and computes do."""
        bindings: dict[str, Binding] = {"x": o, "norms": norms, "dv": self.gradients["dv"], "d": self.gradients["do"]}
        params = {"blocks": self.config.width // 32, "first": 0, "scale": scale, "eps": self.config.eps}
        p.tape.run("norm_back", [p.rows], bindings, params, {"THREADS": THREADS, "RESIDUAL": True})

    def _begin_block(self, p: Pass, v: Buffer, norms: Buffer, dx: Buffer) -> None:
        """x = norm ⊙ rms(v): adds dx's contribution to dv."""
        bindings: dict[str, Binding] = {"x": v, "norms": norms, "dy": dx, "d": self.gradients["dv"]}
        width = self.config.width
        params = {"blocks": width // 32, "first": width // 4, "scale": 1.0, "eps": self.config.eps}
        p.tape.run("norm_back", [p.rows], bindings, params, {"THREADS": THREADS})

    # -- products

    def _linear(
        self,
        p: Pass,
        layer: TextLayer,
        group: str,
        matrices: Sequence[Matrix],
        x: Binding,
        dy: Binding,
        dx: Buffer,
        *,
        add: bool = False,
    ) -> None:
        """y = W x + B A x for matrices side by side: dx from dy (added if `add`), and the gradients of A and B."""
        width = sum(matrix.rows for matrix in matrices)
        offset = 0
        for matrix in matrices:
            transposed(p.tape, matrix, p.rows, dy, width, offset, dx, add=add or offset > 0)
            offset += matrix.rows
        low = p.low(layer, group)
        if low is not None:
            self._low(p, low, self.decoder.kept[f"z {group}"], x, dy, dx)

    def _low(self, p: Pass, low: Low, z: Buffer, x: Binding, dy: Binding, dx: Buffer) -> None:
        tape, rows, g, columns = p.tape, p.rows, self.gradients["g"], low.a.columns
        edge1, edge2 = low.edges
        shape = {"edge1": edge1, "edge2": edge2, "interleaved": low.interleaved, "rows": rows}
        bound: dict[str, Binding] = {"dy": dy, "b": low.b, "scales": low.scales, "g": g}
        grid = [low.targets * -(-low.rank // 16), -(-rows // 4)]
        params = {"rank": low.rank, "targets": low.targets, "n": low.width, "stride": low.width, "offset": 0, **shape}
        tape.run("low_back", grid, bound, params)
        assert isinstance(low.b, Span)
        bound = {"p": z, "q": dy, "d": self.flat.gradient(low.b)}
        grid = [-(-low.width // 64), -(-low.rank // 16)]
        params = {
            "rank": low.rank,
            "p_stride": low.columns,
            "n": low.width,
            "q_stride": low.width,
            "q_offset": 0,
            **shape,
        }
        tape.run("low_grad", grid, bound, params)
        dropout = self.decoder.products.dropout
        seen = x if dropout is None else dropout.apply(tape, low, rows, x)
        bound = {"p": g, "q": seen, "d": self.flat.gradient(low.a.parts[0].codes)}
        grid = [-(-columns // 64), -(-low.columns // 16)]
        params = {"rank": low.columns, "p_stride": low.columns, "n": columns, "q_stride": columns, "q_offset": 0}
        params |= {"edge1": NEVER, "edge2": NEVER, "interleaved": False, "rows": rows}
        tape.run("low_grad", grid, bound, params)
        if dropout is None:
            transposed(tape, low.a, rows, g, low.columns, 0, dx, add=True)
        else:
            transposed(tape, low.a, rows, g, low.columns, 0, dropout.output, add=False)
            dropout.apply(tape, low, rows, dropout.output, dx)

    # -- between products

    def _feed_forward(self, p: Pass, layer: TextLayer, x: Binding, dy: Binding, dx: Buffer) -> None:
        kept, grads, width = self.decoder.kept, self.gradients, layer.config.ffn_width
        self._linear(p, layer, "down", (layer.ffn.down,), kept["act"], dy, grads["d act"])
        mode = {"GEGLU": True} if len(layer.ffn.gate_up) == 1 else {"APART": True}
        bindings: dict[str, Binding] = {"x": kept["wide"], "dy": grads["d act"], "dx": grads["d wide"]}
        p.tape.run("activate_back", [-(-width // 256), p.rows], bindings, {"n": width}, mode)
        self._linear(p, layer, "gate_up", layer.ffn.gate_up, x, grads["d wide"], dx)

    def _through_gate(self, p: Pass, index: int) -> None:
        kept, grads, width = self.decoder.kept, self.gradients, self.config.ple_dim
        bindings: dict[str, Binding] = {"x": kept["gate"], "dy": grads["d gated"], "dx": grads["d gate"]}
        bindings["side"] = kept["ple"]
        params = {"n": width, "side_stride": width * len(self.weights.layers), "side_offset": width * index}
        p.tape.run("activate_back", [-(-width // 256), p.rows], bindings, params, {"SIDE": True})

    # -- attention

    def _attention(self, p: Pass, layer: TextLayer) -> None:
        """From `d attended` to `d qkv`."""
        kept, grads, config, attention = self.decoder.kept, self.gradients, layer.config, layer.attention
        owner = config.index if config.donor is None else config.donor
        (segment,) = self.cache.segments[owner]
        turns, eps = self.weights.turns[config.sliding], self.config.eps
        head = {"HEAD": config.head_dim, "PAIRS": self.weights.pairs[config.sliding], "THREADS": 64}
        told: dict[str, Binding] = {"rows": p.row_buffer, "turns": turns}
        bound = {**told, "q_raw": kept["qkv"], "norm": attention.q_norm, "out": kept["attended"]}
        bound |= {"d_out": grads["d attended"], "lse": kept["partial"], "q": grads["q"]}
        grid = [config.heads, p.rows]
        params = {"heads": config.heads, "stride": attention.width, "eps": eps}
        p.tape.run("attention_prepare", grid, bound, params, head)
        pairs = {"HEAD": config.head_dim, "THREADS": max(config.head_dim // 2, 128)}
        common: dict[str, Binding] = {"rows": p.row_buffer, "q": grads["q"], "d_out": grads["d attended"]}
        common |= {"keys": segment.keys, "values": segment.values}
        shape = {"heads": config.heads, "kv_heads": config.kv_heads, "window": config.window or 0, "rows": p.rows}
        fours = -(-p.rows // 4)
        p.tape.run("attention_back", [config.heads, fours], {**common, "dq": grads["dq"]}, shape, pairs)
        bound = {**told, "k_raw": kept["qkv"], "norm": attention.q_norm, "dk": grads["dq"], "d_qkv": grads["d qkv"]}
        params = {"kv_heads": config.heads, "stride": attention.width, "k_offset": 0, "eps": eps}
        p.tape.run("kv_back", [config.heads, p.rows], bound, params, {**head, "QUERIES": True})
        dk, dv = self._owed.get(owner, self._own)
        add = owner in self._owed and config.index != self._first_to_owe(owner)
        bound = {**common, "dk": dk, "dv": dv}
        p.tape.run("attention_back_kv", [config.kv_heads, fours], bound, {**shape, "add": add}, pairs)
        if config.donor is None:
            assert attention.k_norm is not None
            bound = {**told, "k_raw": kept["qkv"], "v_raw": kept["qkv"], "norm": attention.k_norm}
            bound |= {"dk": dk, "dv": dv, "d_qkv": grads["d qkv"]}
            params = {"kv_heads": config.kv_heads, "stride": attention.width, "eps": eps}
            params |= {"k_offset": attention.k_offset, "v_offset": attention.v_offset}
            p.tape.run("kv_back", [config.kv_heads, p.rows], bound, params, {**head, "OWN_V": config.has_v})

    def _first_to_owe(self, owner: int) -> int:
        """The layer the backward pass reaches first among those that use an owner's keys and values."""
        return max(layer.index for layer in self.config.layers if owner in (layer.index, layer.donor))

    # -- experts

    def _experts(self, p: Pass, layer: TextLayer, experts: Experts) -> None:
        """From `do` to the gradient of the residual stream, through the dense block, the experts and the router."""
        kept, grads, config = self.decoder.kept, self.gradients, self.config
        params = {"blocks": config.width // 32, "slots": config.experts_used, "eps": config.eps}
        threads = {"THREADS": THREADS}
        bound: dict[str, Binding] = {"dense": kept["dense"], "routed": kept["routed"], "norms": experts.join}
        bound |= {"dy": grads["do"], "d_dense": grads["d dense"], "d_sum": grads["d sum"]}
        p.tape.run("experts_join_back", [p.rows], bound, params, threads)
        section = 4 * (p.rows + p.rows % 2) * config.width
        self._feed_forward(p, layer, Span(kept["ffn x"], 0, section), grads["d dense"], grads["dx"])
        self._ask_experts(p, experts)
        router = (p.tape, experts.router, p.rows, grads["d scores"], config.expert_count, 0, grads["d router"])
        transposed(*router, add=False)
        bound = {"v": kept["h1"], "norms": experts.norms, "d_dense": grads["dx"], "d_experts": grads["d inner"]}
        bound |= {"d_router": grads["d router"], "dv": grads["dv"]}
        p.tape.run("experts_norm_back", [p.rows], bound, params, threads)

    def _ask_experts(self, p: Pass, experts: Experts) -> None:
        """From `d sum` to the gradients of the experts' input, one per slot, and of the router's scores."""
        kept, grads, config = self.decoder.kept, self.gradients, self.config
        act, width, slots = grads["d expert act"], config.expert_width, config.experts_used
        self._transposed_experts(p, experts.down, grads["d sum"], act)
        bound: dict[str, Binding] = {"scores": kept["scores"], "expert_scale": experts.scale, "chosen": kept["chosen"]}
        bound |= {"act": kept["expert_act"], "d_act": act, "dscores": grads["d scores"]}
        params = {"experts": config.expert_count, "used": slots, "width": width}
        p.tape.run("route_back", [p.rows], bound, params, {"THREADS": THREADS})
        wide, d_wide, grid = kept["expert_wide"], grads["d expert wide"], [-(-width // 256), p.rows * slots]
        if len(experts.gate_up) == 1:
            bound = {"x": wide, "dy": act, "dx": d_wide}
            p.tape.run("activate_back", grid, bound, {"n": width}, {"GEGLU": True})
            self._transposed_experts(p, experts.gate_up[0], d_wide, grads["d inner"], per_slot=True)
            return
        half = -(-4 * p.rows * slots * width // 256) * 256  # two types: gate, then up
        (gate, up), (d_gate, d_up) = ([Span(wide_, i * half, half) for i in (0, 1)] for wide_ in (wide, d_wide))
        bound = {"x": gate, "dy": act, "dx": d_gate, "side": up}
        params = {"n": width, "side_stride": width, "side_offset": 0}
        p.tape.run("activate_back", grid, bound, params, {"SIDE": True})
        bound = {"x": gate, "side": act, "y": d_up}  # up's gradient is gelu(gate) times the product's
        p.tape.run("activate", grid, bound, params, {"SIDE": True})
        for matrix, dy in zip(experts.gate_up, (d_gate, d_up), strict=True):
            self._transposed_experts(p, matrix, dy, grads["d inner"], per_slot=True, add=dy is d_up)

    def _transposed_experts(
        self, p: Pass, matrix: Matrix, dy: Binding, dx: Buffer, *, per_slot: bool = False, add: bool = False
    ) -> None:
        """The backward pass of each row's product with its chosen experts."""
        slots, per_expert = self.config.experts_used, matrix.rows // self.config.expert_count
        chosen = self.decoder.kept["chosen"]
        for part in matrix.parts:
            bound: dict[str, Binding] = {**part.bindings(), "dy": dy, "chosen": chosen, "dx": dx}
            params = {"blocks": matrix.blocks, "n": per_expert, "slots": slots, "add": add, **part.experts(per_expert)}
            constants = {"TYPE": matrix.planes.reader, "PER_SLOT": per_slot}
            grid = [-(-matrix.blocks // 8), p.rows, slots]
            p.tape.run("experts_back", grid, bound, params, constants)


def _pair(ledger: Ledger, size: int) -> tuple[Buffer, Buffer]:
    return ledger.buffer(size, "gradients of keys"), ledger.buffer(size, "gradients of values")


def transposed(
    tape: Tape, matrix: Matrix, rows: int, dy: Binding, stride: int, offset: int, dx: Binding, *, add: bool
) -> None:
    """dx[r, k] = Σ_n dy[r, offset + n] · W[n, k], or added to dx."""
    for part in matrix.parts:
        bindings: dict[str, Binding] = {**part.bindings(), "dy": dy, "dx": dx}
        params = {"blocks": matrix.blocks, "n": part.rows, "rows": rows}
        params |= {"stride": stride, "offset": offset + part.first, "add": add or part.first > 0}
        constants: dict[str, Any] = {"TYPE": matrix.planes.reader}
        if tape.device.compact:
            grid = [-(-matrix.columns // 512), -(-rows // 4)]
            tape.run("direct_back", grid, bindings, params, constants)
        else:
            form = tile_back_form(tape.device, rows)
            grid = [-(-matrix.columns // 64), -(-rows // form["ROWS"])]
            tape.run("tile_back", grid, bindings, params, constants | form)
