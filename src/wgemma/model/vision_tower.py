"""The vision transformer of E2B, E4B, 26B and 31B: loads its weights and records its layers.

Each layer is a separate program: a large image takes many seconds on a small GPU, and drivers kill what runs too long;
also, the next layer is recorded while the GPU works on one. As in the decoder, the residual stream switches buffers
with every norm (kernels/residual.wgsl).
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wgemma.files.gguf import Tensor
from wgemma.gpu.device import Buffer, Device, Span
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.forms import THREADS, pairs, passing_form
from wgemma.model.places import VisionPositions, add_places, load_places
from wgemma.model.rotary import rotary_tables
from wgemma.model.tower import EPS, PACKED, Bounds, Linear, Step, flat, linear, load_linear, submit
from wgemma.model.vision_config import BUDGETS, PATCHES, POOL, ROPE_BASE, SIDE, VisionConfig
from wgemma.model.weights import RowOrder, Uploader

FFN_ROWS = 2560  # patches per feed-forward step, to bound its scratch, the largest


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """`linears` by their names in the file; norms are paired: after a block, before the next."""

    linears: Mapping[str, Linear]
    attention_norms: Buffer  # [2, D]: after the previous layer, ln1
    ffn_norms: Buffer  # [2, D]: attn_post_norm, ln2
    head_norms: Buffer  # [2, head_dim]: q, k
    scale: float  # applied to the stream after the previous layer


@dataclass(frozen=True, slots=True)
class Tower:
    config: VisionConfig
    patches: Linear
    places: VisionPositions
    turns: Buffer
    layers: tuple[VisionLayer, ...]
    last_norms: Buffer  # [2, D]: after the last layer, none
    last_scale: float
    pooled: Buffer  # [2, D]: bias, scale
    plain: Buffer  # [2, D]: zeros, ones: a norm without weights

    async def tokens(self, device: Device, x: Buffer, across: int, down: int, y: Buffer, step: Step) -> None:
        """Submits the computation from patches x [patches, 768] to the projector's input y [tokens, D]."""
        with Ledger(device) as scratch:
            await _Run(self, device, scratch, across, down).all(x, y, step)


async def load_tower(uploader: Uploader, config: VisionConfig, tensors: Mapping[str, Tensor]) -> Tower:
    inner = config.inner

    async def vector(name: str) -> "array[float]":
        return await uploader.vector(tensors[name])

    def upload(label: str, *vectors: "array[float]") -> Buffer:
        return uploader.upload(b"".join(vector.tobytes() for vector in vectors), label)

    zeros, ones = array("f", bytes(4 * inner)), array("f", [1.0]) * inner
    matrix = await uploader.matrix([(flat(tensors[PATCHES], config.columns), RowOrder())])
    layers, end, scale = [], zeros, 1.0
    for i in range(config.layers):
        block = f"v.blk.{i}."
        layers.append(
            VisionLayer(
                linears={name: await load_linear(uploader, tensors, block + name) for name in PACKED},
                attention_norms=upload("vision norms", end, await vector(f"{block}ln1.weight")),
                ffn_norms=upload(
                    "vision norms", await vector(f"{block}attn_post_norm.weight"), await vector(f"{block}ln2.weight")
                ),
                head_norms=upload(
                    "vision norms",
                    await vector(f"{block}attn_q_norm.weight"),
                    await vector(f"{block}attn_k_norm.weight"),
                ),
                scale=scale,
            )
        )
        end = await vector(f"{block}ffn_post_norm.weight")
        scale = (await vector(f"{block}out_scale.weight"))[0] if f"{block}out_scale.weight" in tensors else 1.0
    bias = await vector("v.std_bias") if "v.std_bias" in tensors else zeros
    std = await vector("v.std_scale") if "v.std_scale" in tensors else ones
    half, longest = config.head_dim // 2, BUDGETS[-1] * SIDE // config.patch
    return Tower(
        config=config,
        patches=Linear(matrix, Bounds(), None),
        places=await load_places(uploader, config, tensors),
        turns=uploader.upload(rotary_tables(ROPE_BASE, half, half // 2, None, longest), "vision rotary table"),
        layers=tuple(layers),
        last_norms=upload("vision norms", end, zeros),
        last_scale=scale,
        pooled=upload("vision pooling", bias, std),
        plain=upload("no norm", zeros, ones),
    )


class _Run:
    """One image's run through the tower."""

    def __init__(self, tower: Tower, device: Device, scratch: Ledger, across: int, down: int) -> None:
        self.tower = tower
        self.device = device
        self.across = across
        self.patches = across * down
        config = tower.config
        rows = [scratch.buffer(4 * self.patches * config.inner, "vision scratch") for _ in range(6)]
        self.h, self.h_next, self.x, self.q, self.k, self.v = rows
        fitting = device.limits.binding // (4 * config.ffn_width) // 64 * 64
        self.chunk = min(self.patches, FFN_ROWS, max(fitting, 64))
        wide = [scratch.buffer(4 * self.chunk * config.ffn_width, "vision scratch") for _ in range(3)]
        self.gate, self.up, self.gated = wide

    async def all(self, patches: Buffer, y: Buffer, step: Step) -> None:
        tape = Tape(self.device, "vision")
        self._embed(tape, patches)
        for i, layer in enumerate(self.tower.layers):
            await step(i, len(self.tower.layers))
            self._layer(tape, layer)
            submit(tape)
            tape = Tape(self.device, "vision")
        self._pool(tape, y)
        submit(tape)

    def _embed(self, tape: Tape, patches: Buffer) -> None:
        linear(tape, self.tower.patches, self.patches, patches, self.x)
        add_places(tape, self.tower.places, self.patches, self.across, self.x, self.h)

    def _layer(self, tape: Tape, layer: VisionLayer) -> None:
        config, count = self.tower.config, self.patches
        # Nothing is pending before the first layer: the norm is zero, and so is v, which it multiplies.
        self._norm(tape, self.v, layer.attention_norms, layer.scale)
        for name, y in (("attn_q", self.q), ("attn_k", self.k), ("attn_v", self.v)):
            linear(tape, layer.linears[name], count, self.x, y)
        heads = {"q": self.q, "k": self.k, "v": self.v}
        turned = {**heads, "norms": layer.head_norms, "turns": self.tower.turns}
        params = {"heads": config.heads, "across": self.across, "eps": EPS}
        tape.run("vision_heads", [count], turned, params, {"PAIRS": config.head_dim // 4})
        params = {"patches": count, "heads": config.heads}
        if self.device.compact:
            constants = direct_constants(self.device, config.head_dim)
            tape.run("vision_direct", [-(-count // constants["THREADS"]), config.heads], heads, params, constants)
        else:
            constants = attention_constants(self.device, config.head_dim)
            tape.run("vision_attention", [-(-count // 64), config.heads], heads, params, constants)
        linear(tape, layer.linears["attn_out"], count, self.q, self.k)
        self._norm(tape, self.k, layer.ffn_norms, 1.0)
        for first in range(0, count, self.chunk):
            self._ffn(tape, layer, first, min(self.chunk, count - first))

    def _ffn(self, tape: Tape, layer: VisionLayer, first: int, rows: int) -> None:
        """The feed-forward block for some patches, from x to v."""
        config = self.tower.config
        row_bytes = 4 * config.inner
        x, y = (Span(buffer, first * row_bytes, rows * row_bytes) for buffer in (self.x, self.v))
        linear(tape, layer.linears["ffn_gate"], rows, x, self.gate)
        linear(tape, layer.linears["ffn_up"], rows, x, self.up)
        width = config.ffn_width
        activated = {"x": self.gate, "side": self.up, "y": self.gated}
        params = {"n": width, "side_stride": width, "side_offset": 0}
        tape.run("activate", [-(-width // 256), rows], activated, params, {"SIDE": True})
        linear(tape, layer.linears["ffn_down"], rows, self.gated, y)

    def _pool(self, tape: Tape, y: Buffer) -> None:
        """Adds the last output, pools patches into tokens, and applies a norm without weights."""
        inner, tokens = self.tower.config.inner, self.patches // POOL**2
        self._norm(tape, self.v, self.tower.last_norms, self.tower.last_scale)
        pooled = {"x": self.h, "adjust": self.tower.pooled, "y": self.q}
        params = {"quads": inner // 4, "across": self.across, "factor": math.sqrt(inner)}
        tape.run("pool", [-(-inner // 256), tokens], pooled, params)
        plain_norm(tape, inner, tokens, self.q, self.k, self.tower.plain, y)

    def _norm(self, tape: Tape, pending: Buffer, norms: Buffer, scale: float) -> None:
        """h ← scale · (h + norm ⊙ rms(pending)), x = norm ⊙ rms(h)."""
        bindings = {"h": self.h, "o": pending, "norms": norms, "h_out": self.h_next, "x": self.x}
        norm(tape, self.tower.config.inner, self.patches, bindings, scale)
        self.h, self.h_next = self.h_next, self.h


def norm(tape: Tape, columns: int, rows: int, bindings: Mapping[str, Buffer], scale: float = 1.0) -> None:
    constants = {"THREADS": THREADS, "NORM": True, "PAIRS": pairs(columns)}
    tape.run("norm", [rows], bindings, {"blocks": columns // 32, "scale": scale, "eps": EPS}, constants)


def plain_norm(tape: Tape, columns: int, rows: int, h: Buffer, scratch: Buffer, plain: Buffer, y: Buffer) -> None:
    """y = rms(h): a norm whose weights are ones, with nothing pending."""
    norm(tape, columns, rows, {"h": h, "o": h, "norms": plain, "h_out": scratch, "x": y})


def direct_constants(device: Device, head_dim: int) -> dict[str, Any]:
    """How vision_direct.wgsl passes a head around."""
    form, vectors = passing_form(device, "vision_direct"), head_dim // 4
    return form | {"QUADS": vectors, "TURNS": -(-vectors // form["LANES"])}


def attention_constants(device: Device, head_dim: int) -> dict[str, Any]:
    """How vision_attention.wgsl slices a head: as coarsely as workgroup memory and registers allow."""
    vectors = head_dim // 4
    room = device.limits.workgroup_memory // 16 - 576 - 128  # besides the shares and what threads exchange
    slice_ = max(size for size in (1, 2, 3, 4) if vectors % size == 0 and 96 * (size | 1) <= room)
    values = max(keys for keys in (8, 16) if keys * vectors <= min(512, room - 8))
    tile = max(96 * (slice_ | 1), values * vectors + 8)
    constants: dict[str, Any] = {"QUADS": vectors, "SLICE": slice_, "VALUES": values, "TILE": tile}
    return constants | {f"PARTS{n}": vectors > 8 * (n - 1) for n in (2, 3, 4)}
