"""Records the audio tower of E2B and E4B: two convolutions (four frames to a token), then conformer blocks.

    h = W · relu(norm(conv(relu(norm(conv(mel))))))
    per block:   h += ½ norm(W · silu(W · norm(h)))
                 h += norm(W · attention(norm(h)))        over a token and the eleven before it
                 h += W · silu(norm(conv(glu(W · norm(h)))))
                 h += ½ norm(W · silu(W · norm(h)))
                 h  = norm(h)
    out = W · h + bias

All linears are clipped (model/tower.py).
"""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from wgemma.files.gguf import Tensor
from wgemma.gpu.device import Binding, Buffer
from wgemma.gpu.ledger import Ledger
from wgemma.gpu.tape import Tape
from wgemma.model.audio_config import ConformerConfig
from wgemma.model.forms import THREADS, pairs
from wgemma.model.mel import BANDS
from wgemma.model.tower import EPS, Linear, Step, linear, load_linear, submit
from wgemma.model.weights import Uploader

KEYS = 12  # a token attends to this many: itself and those before it
CAP = 50.0  # softcap of the scores
QUERY_SCALE = 1 / math.log(2)  # times head_dim^−½
KEY_SCALE = math.log(1 + math.e) / math.log(2)
LONGEST_WAVE = 10_000.0  # of the relative positions, over 2π


@dataclass(frozen=True, slots=True)
class Convolution:
    weights: Buffer  # [3, 3, channels in, channels]
    norm: Buffer
    channels_in: int
    channels: int


@dataclass(frozen=True, slots=True)
class ConformerFeedForward:
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Block:
    """Norms are paired as kernels/residual.wgsl reads them: the one after a step, the one before the next."""

    start: Buffer  # [d]
    first: ConformerFeedForward
    attention_norms: Buffer  # [2, d]
    q: Linear
    k: Linear
    v: Linear
    scales: Buffer  # [2, head_dim]: of queries, of keys
    relative: Buffer  # [KEYS, d]
    out: Linear
    light_norms: Buffer  # [2, d]
    gates: Linear
    light: Buffer  # [d, taps]
    light_norm: Buffer  # [d]
    mix: Linear
    second_norm: Buffer  # [d]
    second: ConformerFeedForward
    end_norms: Buffer  # [2, d]


@dataclass(frozen=True, slots=True)
class Conformer:
    config: ConformerConfig
    convolutions: tuple[Convolution, Convolution]
    subsampled: Linear
    blocks: tuple[Block, ...]
    output: Linear


def halved(count: int) -> int:
    """The output size of a stride-2 convolution."""
    return (count - 1) // 2 + 1


# -- loading


async def load_conformer(uploader: Uploader, tensors: Mapping[str, Tensor], config: ConformerConfig) -> Conformer:
    loader = _Loader(uploader, tensors, config)
    first, second = config.channels
    convolutions = (await loader.convolution(0, 1, first), await loader.convolution(1, first, second))
    subsampled = await load_linear(uploader, tensors, config.names.subsampled)
    distances = uploader.upload(_distances(config.width).tobytes(), "distances")
    blocks = tuple([await loader.block(f"a.blk.{index}.", distances) for index in range(config.blocks)])
    uploader.ledger.drop(distances)
    return Conformer(
        config, convolutions, subsampled, blocks, await load_linear(uploader, tensors, config.names.output)
    )


class _Loader:
    def __init__(self, uploader: Uploader, tensors: Mapping[str, Tensor], config: ConformerConfig) -> None:
        self.uploader = uploader
        self.tensors = tensors
        self.config = config

    async def convolution(self, index: int, channels_in: int, channels: int) -> Convolution:
        """The file has [channels, channels in, time, frequency]; the kernel takes the channels last."""
        name = f"a.conv1d.{index}"
        values = await self._vector(f"{name}.weight")
        turned = array("f")
        for tap in range(9):
            for c in range(channels_in):
                turned += values[9 * c + tap :: 9 * channels_in]
        norm = self._upload(f"{name}.norm", await self._vector(f"{name}.norm.weight"))
        return Convolution(self._upload(name, turned), norm, channels_in, channels)

    async def block(self, block: str, distances: Buffer) -> Block:
        names = self.config.names
        return Block(
            start=await self._norms(block, "ffn_norm"),
            first=await self._feed_forward(block, ""),
            attention_norms=await self._norms(block, "ffn_post_norm", names.before_attention, half=True),
            q=await self._linear(block, "attn_q"),
            k=await self._linear(block, "attn_k"),
            v=await self._linear(block, "attn_v"),
            scales=await self._scales(block),
            relative=await self._relative(block, distances),
            out=await self._linear(block, "attn_out"),
            light_norms=await self._norms(block, names.after_attention, "conv_norm"),
            gates=await self._linear(block, "conv_pw1"),
            light=self._upload("convolution", await self._vector(f"{block}conv_dw.weight")),
            light_norm=await self._norms(block, "norm_conv"),
            mix=await self._linear(block, "conv_pw2"),
            second_norm=await self._norms(block, "ffn_norm_1"),
            second=await self._feed_forward(block, "_1"),
            end_norms=await self._norms(block, "ffn_post_norm_1", names.block_end, half=True),
        )

    async def _feed_forward(self, block: str, which: str) -> ConformerFeedForward:
        return ConformerFeedForward(
            await self._linear(block, f"ffn_up{which}"), await self._linear(block, f"ffn_down{which}")
        )

    async def _linear(self, block: str, name: str) -> Linear:
        return await load_linear(self.uploader, self.tensors, block + name)

    async def _norms(self, block: str, *names: str, half: bool = False) -> Buffer:
        """Concatenated norms; `half` halves the first, since feed-forward steps add half their output."""
        vectors = [await self._vector(f"{block}{name}.weight") for name in names]
        if half:
            vectors[0] = array("f", (0.5 * value for value in vectors[0]))
        return self._upload(block + names[0], *vectors)

    async def _scales(self, block: str) -> Buffer:
        """Factors for queries and keys; the file's numbers are already after softplus."""
        size = self.config.head_dim
        factor, name = QUERY_SCALE * size**-0.5, f"{block}per_dim_k_scale.weight"
        queries = array("f", (factor * value for value in await self._vector(f"{block}per_dim_scale.weight")))
        keys = await self._vector(name) if name in self.tensors else [1.0] * size
        return self._upload(f"{block}scales", queries, array("f", (KEY_SCALE * value for value in keys)))

    async def _relative(self, block: str, distances: Buffer) -> Buffer:
        """W · s(δ) for every distance; the matrix itself is not needed afterwards."""
        device = self.uploader.device
        matrix = await self._linear(block, self.config.names.relative)
        relative = self._upload(f"{block}relative", array("f", bytes(4 * KEYS * self.config.width)))
        tape = Tape(device, "relative positions")
        linear(tape, matrix, KEYS, distances, relative)
        tape.program().replay()
        tape.free()
        for part in matrix.matrix.parts:
            self.uploader.ledger.drop(part.buffer)
        return relative

    async def _vector(self, name: str) -> "array[float]":
        return await self.uploader.vector(self.tensors[name])

    def _upload(self, label: str, *vectors: "array[float]") -> Buffer:
        return self.uploader.upload(b"".join(vector.tobytes() for vector in vectors), label)


def _distances(width: int) -> "array[float]":
    """s(δ) = [sin(δ τ₀) …, cos(δ τ₀) …], τᵢ = 10000^(−i / (d/2 − 1)), for every δ: [KEYS, d]."""
    half = width // 2
    rates = [LONGEST_WAVE ** (-i / max(half - 1, 1)) for i in range(half)]
    rows = array("f")
    for distance in range(KEYS):
        rows.extend(math.sin(distance * rate) for rate in rates)
        rows.extend(math.cos(distance * rate) for rate in rates)
    return rows


# -- recording


def record_rms(tape: Tape, rows: int, columns: int, h: Binding, norm: Binding, x: Binding) -> None:
    """x = norm ⊙ rms(h)."""
    params = {"quads": columns // 4, "eps": EPS}
    tape.run("rms", [rows], {"h": h, "norm": norm, "x": x}, params, {"THREADS": THREADS})


async def submit_conformer(
    tape: Tape, conformer: Conformer, scratch: Ledger, frames: int, mel: Buffer, y: Buffer, step: Step
) -> None:
    """From the mel spectrum [frames, BANDS], which `tape` computes, to y [tokens, inner]; one submission per block."""
    config = conformer.config
    tokens = halved(halved(frames))
    x, rows, columns = mel, frames, BANDS
    for convolution in conformer.convolutions:
        out = scratch.buffer(4 * halved(rows) * halved(columns) * convolution.channels, "convolution")
        _convolve(tape, convolution, rows, columns, x, out)
        x, rows, columns = out, halved(rows), halved(columns)
    stream = _Stream(scratch, tokens, config)
    linear(tape, conformer.subsampled, tokens, x, stream.h)
    for i, block in enumerate(conformer.blocks):
        await step(i, len(conformer.blocks))
        stream.record(tape, block)
        submit(tape)
        tape = Tape(tape.device, "sound")
    linear(tape, conformer.output, tokens, stream.h, y)
    submit(tape)


def places(channels: int) -> int:
    """Results per workgroup of kernels/subsample.wgsl."""
    return next(count for count in (32, 16, 8, 4) if count * channels <= 1024)


def _convolve(tape: Tape, convolution: Convolution, rows: int, columns: int, x: Buffer, y: Buffer) -> None:
    bindings: dict[str, Binding] = {"x": x, "w": convolution.weights, "norm": convolution.norm, "y": y}
    params = {"rows": rows, "columns": columns, "channels": convolution.channels_in, "eps": EPS}
    params |= {"out_columns": halved(columns), "out_channels": convolution.channels}
    together = places(convolution.channels)
    grid = [-(-halved(columns) // together), halved(rows)]
    tape.run("subsample", grid, bindings, params, {"PLACES": together})


class _Stream:
    """The residual stream h during recording, and the buffers the blocks share."""

    def __init__(self, scratch: Ledger, tokens: int, config: ConformerConfig) -> None:
        d = config.width
        self.tokens, self.config = tokens, config
        self.h, self.spare, self.x, self.o = (scratch.buffer(4 * tokens * d, name) for name in ("h", "h2", "x", "o"))
        self.wide = scratch.buffer(4 * tokens * max(config.ffn_width, 3 * d), "wide")

    def record(self, tape: Tape, block: Block) -> None:
        rows, config = self.tokens, self.config
        d = config.width
        record_rms(tape, rows, d, self.h, block.start, self.x)
        self._feed_forward(tape, block.first)
        self._add(tape, block.attention_norms)
        for index, matrix in enumerate((block.q, block.k, block.v)):
            linear(tape, matrix, rows, self.x, self.wide, 3 * d, index * d)
        bindings: dict[str, Binding] = {"qkv": self.wide, "scales": block.scales, "relative": block.relative}
        params: dict[str, float] = {"head": config.head_dim, "width": d, "cap": CAP}
        tape.run("local_attention", [config.heads, rows], bindings | {"out": self.x}, params, {"KEYS": KEYS})
        linear(tape, block.out, rows, self.x, self.o)
        self._add(tape, block.light_norms)
        linear(tape, block.gates, rows, self.x, self.wide)
        bindings = {"u": self.wide, "w": block.light, "norm": block.light_norm, "y": self.x}
        params = {"n": d, "taps": config.taps, "eps": EPS}
        tape.run("light_conv", [rows], bindings, params, {"THREADS": THREADS})
        linear(tape, block.mix, rows, self.x, self.o)
        bindings = {"h": self.h, "o": self.o, "norm": block.second_norm, "h_out": self.spare, "x": self.x}
        tape.run("rms", [rows], bindings, {"quads": d // 4, "eps": EPS}, {"THREADS": THREADS, "ADD": True})
        self.h, self.spare = self.spare, self.h
        self._feed_forward(tape, block.second)
        self._add(tape, block.end_norms)
        self.h, self.x = self.x, self.h  # the block's last norm starts a new stream

    def _feed_forward(self, tape: Tape, step: ConformerFeedForward) -> None:
        """From x to o."""
        count = self.tokens * self.config.ffn_width
        linear(tape, step.up, self.tokens, self.x, self.wide)
        tape.run("silu", [-(-count // 256)], {"x": self.wide}, {"count": count})
        linear(tape, step.down, self.tokens, self.wide, self.o)

    def _add(self, tape: Tape, norms: Buffer) -> None:
        """h += post ⊙ rms(o), and x from it for the next step."""
        d = self.config.width
        constants = {"THREADS": THREADS, "NORM": True, "PAIRS": pairs(d)}
        bindings: dict[str, Binding] = {"h": self.h, "o": self.o, "norms": norms, "h_out": self.spare, "x": self.x}
        tape.run("norm", [self.tokens], bindings, {"blocks": d // 32, "scale": 1.0, "eps": EPS}, constants)
        self.h, self.spare = self.spare, self.h
