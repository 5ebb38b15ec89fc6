"""The text model's weights on the GPU, grouped as the decoder uses them.

Norm vectors come in pairs: one kernel (kernels/residual.wgsl) reads the norm after a block and the norm before the
next, so they are stored back to back.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from wgemma.errors import ModelError
from wgemma.files.gguf import Tensor
from wgemma.gpu.device import Buffer
from wgemma.model.config import Config, LayerConfig, find_tensors
from wgemma.model.rotary import check_factors, rotary_tables, table_bytes
from wgemma.model.weights import Matrix, RowOrder, Uploader

TABLE = "per_layer_token_embd.weight"  # may stay on the host


@dataclass(frozen=True, slots=True)
class Attention:
    """`qkv` are the matrices whose results lie side by side; keys and values start at the offsets."""

    qkv: tuple[Matrix, ...]
    k_offset: int
    v_offset: int
    width: int
    q_norm: Buffer
    k_norm: Buffer | None
    output: Matrix


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Gate and up rows alternate in `gate_up`; if their types differ, they are two matrices."""

    gate_up: tuple[Matrix, ...]
    down: Matrix


@dataclass(frozen=True, slots=True)
class Experts:
    router: Matrix
    scale: Buffer  # [E]
    gate_up: tuple[Matrix, ...]
    down: Matrix
    norms: Buffer  # [4, d]: post-attention, dense, experts, router
    join: Buffer  # [2, d]: after the dense block, after the experts


@dataclass(frozen=True, slots=True)
class PerLayer:
    gate: Matrix
    projection: Matrix
    norms: Buffer  # [2, d]: after the feed-forward block; unused


@dataclass(frozen=True, slots=True)
class TextLayer:
    config: LayerConfig
    scale: float  # applied to the residual stream after the layer
    attention_norms: Buffer  # [2, d]: after the previous layer, before attention
    ffn_norms: Buffer  # [2, d]: after attention, before the feed-forward block
    attention: Attention
    ffn: FeedForward
    experts: Experts | None
    per_layer: PerLayer | None


@dataclass(frozen=True, slots=True)
class PerLayerInputs:
    """The table is None if the host fetches its rows."""

    table: Matrix | None
    tensor: Tensor
    projection: Matrix
    norm: Buffer


@dataclass(frozen=True, slots=True)
class TextWeights:
    config: Config
    embedding: Matrix
    head: Matrix
    output_norms: Buffer  # [2, d]: after the last layer, the output norm
    layers: tuple[TextLayer, ...]
    inputs: PerLayerInputs | None
    turns: dict[bool, Buffer]  # rotary tables by layer kind: sliding or not
    pairs: dict[bool, int]


def attention_inputs(layer: LayerConfig, tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """Queries, plus keys and values if the layer has its own; neighbours of one type form one matrix."""
    names = ["q"] if layer.donor is not None else ["q", "k", "v"] if layer.has_v else ["q", "k"]
    groups: list[list[Tensor]] = []
    for name in names:
        tensor = tensors[f"blk.{layer.index}.attn_{name}.weight"]
        if groups and groups[-1][-1].type == tensor.type:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
    return groups


async def load_text(uploader: Uploader, config: Config, context: int, *, ple_on_gpu: bool) -> TextWeights:
    """Uploads everything the decoder needs; the uploader's ledger owns it."""
    try:
        weights = await _Loader(uploader, config, context, ple_on_gpu).load()
        await uploader.device.confirm()
        return weights
    finally:
        uploader.close()


class _Loader:
    def __init__(self, uploader: Uploader, config: Config, context: int, ple_on_gpu: bool) -> None:
        self.uploader = uploader
        self.config = config
        self.context = context
        self.ple_on_gpu = ple_on_gpu
        self.tensors = find_tensors(config, uploader.gguf.tensors)
        for layer in config.layers:
            size = layer.head_dim
            if size & (size - 1) or not 32 <= size <= 512:
                raise ModelError(f"heads of {size} are not supported; the size must be a power of two from 32 to 512.")

    async def load(self) -> TextWeights:
        config = self.config
        self.uploader.expect(self._in_order())
        embedding = await self._matrix("token_embd.weight")
        head = embedding if config.tied else await self._matrix("output.weight")
        ends = [array("f", bytes(4 * config.width))]  # no norm before the first layer
        layers = []
        for layer in config.layers:
            layers.append(await self._layer(layer, ends[-1]))
            last = "post_norm.weight" if config.ple_dim else "post_ffw_norm.weight"
            ends.append(await self._block_vector(layer.index, last))
        output_norms = self._upload("output norms", ends[-1], await self._vector("output_norm.weight"))
        inputs = await self._per_layer_inputs() if config.ple_dim else None
        turns, pairs = await self._rotary()
        return TextWeights(config, embedding, head, output_norms, tuple(layers), inputs, turns, pairs)

    def _in_order(self) -> list[Tensor]:
        """The tensors in roughly the order they are loaded: layer by layer, within a layer in file order."""
        blocks = {f"blk.{layer.index}": layer.index + 2 for layer in self.config.layers}
        first = {"token_embd": 0, "output": 1, **blocks}
        last = len(blocks) + 2

        def turn(tensor: Tensor) -> tuple[int, int]:
            words = tensor.name.split(".")
            return first.get(words[0], first.get(".".join(words[:2]), last)), tensor.offset

        wanted = [tensor for name, tensor in self.tensors.items() if self.ple_on_gpu or name != TABLE]
        return sorted(wanted, key=turn)

    # -- helpers

    async def _vector(self, name: str) -> "array[float]":
        return await self.uploader.vector(self.tensors[name])

    async def _block_vector(self, index: int, name: str) -> "array[float]":
        return await self._vector(f"blk.{index}.{name}")

    def _upload(self, label: str, *vectors: "array[float]") -> Buffer:
        return self.uploader.upload(b"".join(vector.tobytes() for vector in vectors), label)

    async def _matrix(self, name: str, unit: int = 1) -> Matrix:
        return await self.uploader.matrix([(self.tensors[name], RowOrder())], unit)

    async def _rotary(self) -> tuple[dict[bool, Buffer], dict[bool, int]]:
        turns, pairs = {}, {}
        for layer in self.config.layers:
            if layer.sliding in turns:
                continue
            factors = await self.uploader.numbers(self.tensors["rope_freqs.weight"]) if layer.rope_factors else None
            count = layer.rotary_pairs
            if factors:  # a pair with a huge factor does not rotate
                check_factors(factors)
                count = max((j + 1 for j in range(count) if factors[j] < 1e20), default=1)
            make = partial(rotary_tables, layer.rope_base, layer.head_dim, count, factors, self.context)
            turns[layer.sliding] = self.uploader.upload_made(table_bytes(count, self.context), "rotary table", make)
            pairs[layer.sliding] = count
        return turns, pairs

    # -- groups

    async def _layer(self, layer: LayerConfig, end: "array[float]") -> TextLayer:
        i = layer.index
        scale = 1.0
        if f"blk.{i}.layer_output_scale.weight" in self.tensors:
            scale = (await self._block_vector(i, "layer_output_scale.weight"))[0]
        attention_norms = self._upload("attention norms", end, await self._block_vector(i, "attn_norm.weight"))
        after = await self._block_vector(i, "post_attention_norm.weight")
        before = await self._block_vector(i, "ffn_norm.weight")
        return TextLayer(
            config=layer,
            scale=scale,
            attention_norms=attention_norms,
            ffn_norms=self._upload("feed-forward norms", after, before),
            attention=await self._attention(layer),
            ffn=FeedForward(
                await self._gate_up(f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight", layer.ffn_width),
                await self._matrix(f"blk.{i}.ffn_down.weight"),
            ),
            experts=await self._experts(layer, after, before) if self.config.expert_count else None,
            per_layer=await self._per_layer(i) if self.config.ple_dim else None,
        )

    async def _attention(self, layer: LayerConfig) -> Attention:
        qkv = []
        for group in attention_inputs(layer, self.tensors):
            firsts = accumulate((tensor.shape[1] for tensor in group[:-1]), initial=0)
            orders = [RowOrder(add=first) for first in firsts]
            qkv.append(await self.uploader.matrix(list(zip(group, orders, strict=True))))
        q_width, kv_width = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        own = layer.donor is None
        k_norm = await self._block_vector(layer.index, "attn_k_norm.weight") if own else None
        return Attention(
            qkv=tuple(qkv),
            k_offset=q_width,
            v_offset=q_width + kv_width if layer.has_v else q_width,
            width=sum(matrix.rows for matrix in qkv),
            q_norm=self._upload("query norm", await self._block_vector(layer.index, "attn_q_norm.weight")),
            k_norm=self._upload("key norm", k_norm) if k_norm is not None else None,
            output=await self._matrix(f"blk.{layer.index}.attn_output.weight"),
        )

    async def _gate_up(self, gate: str, up: str, width: int) -> tuple[Matrix, ...]:
        """Gate and up of the dense block or of all experts: (E·width) rows each, alternating within an expert."""
        halves = [self.tensors[gate], self.tensors[up]]
        if halves[0].type != halves[1].type:
            return tuple([await self.uploader.matrix([(half, RowOrder())], unit=width) for half in halves])
        orders = [RowOrder(add=i, group=width, half=width, group_stride=2 * width, step=2) for i in (0, 1)]
        experts = len(halves[0].shape) > 2
        return (await self.uploader.matrix(list(zip(halves, orders, strict=True)), unit=2 * width if experts else 2),)

    async def _experts(self, layer: LayerConfig, after: "array[float]", dense: "array[float]") -> Experts:
        i, config = layer.index, self.config
        root = config.width**-0.5
        router = array("f", (root * s for s in await self._block_vector(i, "ffn_gate_inp.scale")))
        inner = await self._block_vector(i, "pre_ffw_norm_2.weight")
        width = config.expert_width
        if layer.fused_experts:
            order = RowOrder(group=2 * width, half=width, group_stride=2 * width, step=2)
            tensor = self.tensors[f"blk.{i}.ffn_gate_up_exps.weight"]
            gate_up: tuple[Matrix, ...] = (await self.uploader.matrix([(tensor, order)], unit=2 * width),)
        else:
            gate_up = await self._gate_up(f"blk.{i}.ffn_gate_exps.weight", f"blk.{i}.ffn_up_exps.weight", width)
        return Experts(
            router=await self._matrix(f"blk.{i}.ffn_gate_inp.weight"),
            scale=self._upload("expert scale", await self._block_vector(i, "ffn_down_exps.scale")),
            gate_up=gate_up,
            down=await self._matrix(f"blk.{i}.ffn_down_exps.weight", unit=config.width),
            norms=self._upload("expert norms", after, dense, inner, router),
            join=self._upload(
                "expert joining norms",
                await self._block_vector(i, "post_ffw_norm_1.weight"),
                await self._block_vector(i, "post_ffw_norm_2.weight"),
            ),
        )

    async def _per_layer(self, i: int) -> PerLayer:
        after = await self._block_vector(i, "post_ffw_norm.weight")
        return PerLayer(
            gate=await self._matrix(f"blk.{i}.inp_gate.weight"),
            projection=await self._matrix(f"blk.{i}.proj.weight"),
            norms=self._upload("per-layer norms", after, after),
        )

    async def _per_layer_inputs(self) -> PerLayerInputs:
        tensor = self.tensors[TABLE]
        return PerLayerInputs(
            table=await self._matrix(TABLE) if self.ple_on_gpu else None,
            tensor=tensor,
            projection=await self._matrix("per_layer_model_proj.weight"),
            norm=self._upload("per-layer norm", await self._vector("per_layer_proj_norm.weight")),
        )
